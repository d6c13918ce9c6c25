"""Train the built-in model from scratch: one schedule, sized by wall clock, in legs of fresh processes, a core each.

    python tokenizer.py
    python train.py --minutes 90 --out checkpoints

Training begins with pure copying of random tokens until that works, then mixes all six families. Every five minutes a
checkpoint is written; `export.py` turns any of them into a GGUF.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import BatchMaker
from model import Batch, Config, Model, grown
from optimizer import Muon
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing

HERE = Path(__file__).parent
COPY_DONE = 0.35
FULL_RATE = 0.25
MEET = 8  # steps between two averagings of the processes' weights


class Trainer:
    """The training loop's state."""

    def __init__(self, config: Config, maker: BatchMaker, out: Path, rank: int = 0, processes: int = 1) -> None:
        self.model, self.maker, self.out = Model(config), maker, out
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.dim() == 2 and "token_embd" not in name]
        others = [p for name, p in named if p.dim() != 2 or "token_embd" in name]
        self.adam = torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
        self.muon = Muon(matrices)
        self.rank, self.processes = rank, processes
        self.tokens = self.steps = self.worth = self.worth_before = 0
        self.copy_loss = 9.0
        self.warm = False  # whether the optimizers know their moments

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
        losses.mean().backward()
        for group in self.adam.param_groups:
            group["lr"] = 2e-3 * scale
        self.adam.step()
        self.muon.step(0.02 * scale)
        self.model.zero_grad()
        self.steps += 1
        self.tokens += batch.tokens * self.processes
        return float(losses.mean().detach())

    @torch.no_grad()
    def meet(self) -> None:
        """Average the weights of all processes, in one message."""
        if self.processes == 1:
            return
        flat = torch.cat([p.reshape(-1) for p in self.model.parameters()])
        distributed.all_reduce(flat)
        flat /= self.processes
        sizes = [p.numel() for p in self.model.parameters()]
        for parameter, mean in zip(self.model.parameters(), flat.split(sizes), strict=True):
            parameter.copy_(mean.view_as(parameter))

    def save(self, name: str, seconds: float) -> None:
        if self.rank:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        facts = {"tokens": self.tokens, "worth": self.worth, "steps": self.steps, "seconds": round(seconds)}
        state = {"weights": self.model.state_dict(), "config": vars(self.model.config), "facts": facts}
        moments = {"steps": self.steps, "adam": self.adam.state_dict(), "muon": list(self.muon.means.values())}
        for kept, content in ((name, state), ("moments", moments)):
            temporary = self.out / f"{kept}.tmp"
            torch.save(content, temporary)
            temporary.rename(self.out / f"{kept}.pt")

    def warm_up(self, limit: float) -> None:
        """Copy random tokens, in ever longer stretches, until it works."""
        start, longest, going = time.time(), 10, 1.0
        while going:
            loss = self.step(self.maker.copying(longest), min(1.0, (self.steps + 1) / 30))
            self.copy_loss = 0.95 * self.copy_loss + 0.05 * loss
            if self.copy_loss < 1.5 * COPY_DONE and longest < 48:
                longest, self.copy_loss = longest + 2, self.copy_loss + 0.02
            if self.steps % 50 == 0:
                self._say(f"copying: step {self.steps} length {longest} loss {self.copy_loss:.3f}")
            if self.steps % MEET == 0:
                self.meet()
                going = self._first((self.copy_loss > COPY_DONE or longest < 48) and time.time() - start < limit)
        self._say(f"copying learned after {time.time() - start:.0f} s, loss {self.copy_loss:.3f}")

    def resume(self, checkpoint: Path) -> float:
        """Go on from a checkpoint, perhaps with more layers; with the optimizers' moments if they were saved with it,
        else these start anew.

        Gives the seconds spent before.
        """
        state = torch.load(checkpoint, weights_only=True)
        config = self.model.config
        self.model.load_state_dict(grown(state["weights"], config.layers, self.model.state_dict()))
        facts = state["facts"]
        self.tokens, self.steps = facts["tokens"], facts["steps"]
        self.worth = self.worth_before = facts["worth"]
        moments = checkpoint.with_name("moments.pt")
        known = torch.load(moments, weights_only=True) if moments.exists() else {"steps": -1}
        if known["steps"] == self.steps and all(
            mean.shape == kept.shape for mean, kept in zip(self.muon.means.values(), known["muon"], strict=False)
        ):
            self.adam.load_state_dict(known["adam"])
            self.muon.means = dict(zip(self.muon.means, known["muon"], strict=True))
            self.warm = True
        self.maker.rng.seed(f"{self.steps} {self.rank}")  # or the same conversations would come again
        return facts["seconds"]

    def run(
        self, seconds: float, before: float = 0.0, rate: float = 1.0, skip: float = 0.0, leg: float = math.inf
    ) -> None:
        """Train for so many seconds, of which an earlier run did the first `skip`, or as far as `leg` of them more."""
        saved = told = time.time()
        start = saved - skip
        first, tokens = self.steps, self.tokens
        if not before:
            self.warm_up(limit=seconds / 8)
        total = count = elapsed = 0.0
        while elapsed < min(seconds, skip + leg):
            if (self.steps - first) % MEET == 0:
                self.meet()
                elapsed = self._first(time.time() - start)
            scale = rate * schedule(elapsed / seconds) * (1.0 if self.warm else min(1.0, (self.steps - first + 1) / 50))
            if self.maker.rng.random() < 0.06:
                self.step(self.maker.copying(48, hard=True), scale)
                continue
            total, count = total + self.step(self.maker.next(), scale), count + 1
            self.worth = self.worth_before + self.maker.worth * self.processes
            if time.time() - told > 30:
                told, speed = time.time(), (self.tokens - tokens) / (elapsed - skip)
                mean, total, count = total / count, 0.0, 0.0
                self._say(
                    f"{elapsed:.0f} s step {self.steps} tokens {self.tokens / 1e6:.2f} M "
                    f"(worth {self.worth / 1e6:.1f} M) {speed:.0f}/s loss {mean:.4f} lr {scale:.3f}"
                )
            if time.time() - saved > 300:
                saved = time.time()
                self.save("latest", before + elapsed - skip)
        self.meet()
        self.save("final" if elapsed >= seconds else "latest", before + elapsed - skip)

    def _first(self, value: float) -> float:
        """The first process's value: all must agree on when to stop and on the learning rate."""
        if self.processes == 1:
            return value
        agreed = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(agreed, 0)
        return float(agreed)

    def _say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


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
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--feed-forward", type=int, default=704)
    parser.add_argument("--rate", type=float, default=1.0, help="times the schedule's learning rate")
    parser.add_argument("--skip", type=float, default=0, help="minutes of the schedule that an earlier run did")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--processes", type=int, default=1, help="one core each")
    parser.add_argument("--port", type=int, default=29571, help="where the processes meet")
    parser.add_argument("--leg", type=float, default=15, help="minutes after which fresh processes go on: heaps grow")
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    while True:
        os.environ["MASTER_PORT"] = str(options.port)
        start = time.time()
        multiprocessing.spawn(train, (options,), options.processes)
        options.skip += (time.time() - start) / 60
        if options.skip >= options.minutes:
            return
        options.resume, options.port = options.out / "latest.pt", options.port + 1


def train(rank: int, options: argparse.Namespace) -> None:
    """One process's part: every process has its own conversations, their weights are averaged."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    if options.processes > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=options.processes)
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    config = Config(
        tokenizer.get_vocab_size(),
        width=options.width,
        layers=options.layers,
        kv_heads=options.kv_heads,
        feed_forward=options.feed_forward,
    )
    maker = BatchMaker(tokenizer, random.Random(f"{options.seed} {rank}"), options.budget)
    trainer = Trainer(config, maker, options.out, rank, options.processes)
    if rank == 0:
        print("parameters", sum(p.numel() for p in trainer.model.parameters()), "vocabulary", config.vocabulary)
    before = trainer.resume(options.resume) if options.resume else 0.0
    trainer.run(options.minutes * 60, before, options.rate, options.skip * 60, options.leg * 60)


if __name__ == "__main__":
    main()
