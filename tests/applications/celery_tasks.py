"""Celery: tasks, a chord, one for later, with Redis as broker and for the results."""

import os
import subprocess
import sys

os.environ["TARN_PORT"] = sys.argv[1]

from celery import chord

from celery_app import add, total

here = os.path.dirname(os.path.abspath(__file__))
arguments = ["-A", "celery_app", "worker", "--concurrency", "2", "--loglevel", "WARNING", "--without-gossip"]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
worker = subprocess.Popen([sys.executable, "-m", "celery", *arguments], cwd=here, **quiet)
try:
    results = [add.delay(n, n) for n in range(200)]
    assert [result.get(timeout=60) for result in results] == [2 * n for n in range(200)]
    assert chord([add.s(n, n) for n in range(10)])(total.s()).get(timeout=60) == 90
    assert add.apply_async((1, 1), countdown=1).get(timeout=60) == 2
finally:
    worker.terminate()
    try:
        worker.wait(timeout=20)
    except subprocess.TimeoutExpired:
        worker.kill()
