"""What the workers of rq_queue.py run."""


def double(n):
    return 2 * n


def fail():
    raise ValueError("as it should")
