"""The agent loop: generates a turn, runs its calls, and feeds their results back."""
