"""Train the built-in model from scratch: one unbroken schedule, sized by wall clock, on one CPU core.

    python tokenizer.py
    python train.py --minutes 90 --out checkpoints

Training begins with pure copying of random tokens until that works, then mixes all six families. Every five minutes a
checkpoint is written; `export.py` turns any of them into a GGUF.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import BatchMaker
from model import Batch, Config, Model
from optimizer import Muon
from tokenizers import Tokenizer
from torch import Tensor

HERE = Path(__file__).parent
COPY_DONE = 0.35
# How long the first phase lasts: full rate, and a little weight on the prompts, which teaches their shape. Later the
# unpredictable words in them would be most of the loss, and nothing but noise.
FULL_RATE = 0.25
PROMPT_WEIGHT = 0.1


class Trainer:
    """The training loop's state."""

    def __init__(self, config: Config, maker: BatchMaker, out: Path) -> None:
        self.model, self.maker, self.out = Model(config), maker, out
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.dim() == 2 and "token_embd" not in name]
        others = [p for name, p in named if p.dim() != 2 or "token_embd" in name]
        self.adam = torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
        self.muon = Muon(matrices)
        self.tokens = self.steps = self.worth = 0
        self.copy_loss = 9.0

    def losses(self, inputs: tuple[Tensor, ...], targets: Tensor, places: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.model(*inputs)
            hidden = hidden.reshape(-1, hidden.shape[-1])[places]
            logits = F.linear(hidden, self.model.token_embd.weight).float()
        return F.cross_entropy(logits, targets, reduction="none")

    def step(self, batch: Batch, scale: float) -> float:
        """One update; gives the mean loss of what the assistant writes."""
        inputs = (batch.trunk, batch.rows, batch.group, batch.positions, batch.mask)
        losses = self.losses(inputs, batch.targets, batch.places)
        ((losses * batch.weights).sum() / batch.weights.sum()).backward()
        for group in self.adam.param_groups:
            group["lr"] = 2e-3 * scale
        self.adam.step()
        self.muon.step(0.02 * scale)
        self.model.zero_grad()
        self.steps += 1
        self.tokens += batch.tokens
        written = batch.weights >= 1
        return float(losses[written].mean().detach())

    def save(self, name: str, seconds: float) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        facts = {"tokens": self.tokens, "worth": self.worth, "steps": self.steps, "seconds": round(seconds)}
        state = {"weights": self.model.state_dict(), "config": vars(self.model.config), "facts": facts}
        temporary = self.out / f"{name}.tmp"
        torch.save(state, temporary)
        temporary.rename(self.out / f"{name}.pt")

    def warm_up(self, limit: float) -> None:
        """Copy random tokens, in ever longer stretches, until it works."""
        start, longest = time.time(), 10
        while (self.copy_loss > COPY_DONE or longest < 48) and time.time() - start < limit:
            loss = self.step(self.maker.copying(longest), min(1.0, (self.steps + 1) / 30))
            self.copy_loss = 0.95 * self.copy_loss + 0.05 * loss
            if self.copy_loss < 1.5 * COPY_DONE and longest < 48:
                longest, self.copy_loss = longest + 2, self.copy_loss + 0.02
            if self.steps % 50 == 0:
                print(f"copying: step {self.steps} length {longest} loss {self.copy_loss:.3f}", flush=True)
        print(f"copying learned after {time.time() - start:.0f} s, loss {self.copy_loss:.3f}", flush=True)

    def resume(self, checkpoint: Path) -> float:
        """Go on from a checkpoint, at the second where it was written; data and the optimizers' moments start anew."""
        state = torch.load(checkpoint, weights_only=True)
        self.model.load_state_dict(state["weights"])
        facts = state["facts"]
        self.tokens, self.steps = facts["tokens"], facts["steps"]
        self.worth = self.maker.worth = facts["worth"]
        self.maker.rng.seed(f"{self.steps}")  # or the same conversations would come again
        return facts["seconds"]

    def run(self, seconds: float, done: float = 0.0, rate: float = 1.0) -> None:
        start = time.time() - done
        saved = told = time.time()
        first = self.steps
        if not done:
            self.warm_up(limit=seconds / 8)
        total = count = 0.0
        while (elapsed := time.time() - start) < seconds:
            scale = rate * schedule(elapsed / seconds) * min(1.0, (self.steps - first + 1) / 20)
            if self.maker.rng.random() < 0.04:
                self.step(self.maker.copying(48), scale)
                continue
            self.maker.prompt_weight = PROMPT_WEIGHT if elapsed < FULL_RATE * seconds else 0.0
            batch = self.maker.next()
            total, count = total + self.step(batch, scale), count + 1
            self.worth = self.maker.worth
            if time.time() - told > 30:
                told, speed = time.time(), self.tokens / elapsed
                mean, total, count = total / count, 0.0, 0.0
                print(
                    f"{elapsed:.0f} s step {self.steps} tokens {self.tokens / 1e6:.2f} M "
                    f"(worth {self.worth / 1e6:.1f} M) {speed:.0f}/s loss {mean:.4f} lr {scale:.3f}",
                    flush=True,
                )
            if time.time() - saved > 300:
                saved = time.time()
                self.save("latest", elapsed)
        self.save("final", time.time() - start)


def schedule(fraction: float) -> float:
    """Full rate for a quarter of the time, then from 60 % straight down to nearly nothing.

    The batches are small: at full rate they teach the circuits fast but keep shaking them, and the step down at a
    quarter showed in the loss at once.
    """
    return 1.0 if fraction < FULL_RATE else 0.005 + 0.595 * (1 - min(1.0, fraction)) / (1 - FULL_RATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--out", type=Path, default=HERE / "checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=6144, help="tokens a batch, padding included")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--feed-forward", type=int, default=704)
    parser.add_argument("--rate", type=float, default=1.0, help="times the schedule's learning rate")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    config = Config(
        tokenizer.get_vocab_size(), width=options.width, layers=options.layers, feed_forward=options.feed_forward
    )
    trainer = Trainer(config, BatchMaker(tokenizer, random.Random(options.seed), options.budget), options.out)
    print("parameters", sum(p.numel() for p in trainer.model.parameters()), "vocabulary", config.vocabulary, flush=True)
    done = trainer.resume(options.resume) if options.resume else 0.0
    trainer.run(options.minutes * 60, done, options.rate)


if __name__ == "__main__":
    main()
