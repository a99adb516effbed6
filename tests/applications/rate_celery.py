"""Celery at full rate: `add` adds tasks until its input ends, `work` does them until it is told to end. What happens to each is
noted in the file TARN_NOTES, as rate.rs reads it: time in ms, what, the task's number, and which of its deliveries."""

import itertools
import os
import random
import sys
import threading
import time

import redis
from celery import Celery, signals
from celery.worker.request import Request

role, port, *first = sys.argv[1:]
broker, results = (f"redis://127.0.0.1:{port}/{database}" for database in (1, 2))
file = os.open(os.environ["TARN_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = Celery("rate", broker=broker, backend=results if role == "work" else "disabled://")
# What a killed server leaves is taken up soon.
lost = {"visibility_timeout": 10, "unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": 1}
app.conf.update(
    task_acks_late=True,
    task_acks_on_failure_or_timeout=False,
    task_reject_on_worker_lost=True,
    broker_transport_options=lost if "TARN_KILLED" in os.environ else {},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_hijack_root_logger=False,
)
# Stays within what workers get done, so that little is left at the end.
BACKLOG = 500


def note(*what):
    os.write(file, f"{time.time_ns() // 1_000_000} {' '.join(map(str, what))}\n".encode())


class Delivery(Request):
    """Notes when a task has come, and when the answer to its acknowledgement has."""

    # No two workers have the same.
    numbers = itertools.count(time.time_ns())

    def __init__(self, message, **options):
        super().__init__(message, **options)
        n, delivery, acknowledge = int(self.id), next(self.numbers), message.ack

        def ack(multiple=False):
            acknowledge(multiple=multiple)
            note("done", n, delivery)

        message.ack = ack
        note("got", n, delivery)


@app.task(name="work", bind=True, Request=Delivery)
def work(self, n):
    time.sleep(random.random() * 0.004)
    note("ran", n, 0)
    return 2 * n


def add():
    queue = redis.Redis.from_url(broker)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()

    def backlog():
        try:
            return queue.llen("celery")
        except redis.RedisError:
            return BACKLOG + 1

    for n in itertools.count(*map(int, first)):
        while n % 50 == 0 and not ended.is_set() and backlog() > BACKLOG:
            time.sleep(0.02)
        if ended.is_set():
            break
        note("add", n)
        try:
            work.apply_async((n,), task_id=str(n))
            note("added", n)
        except work.OperationalError:
            note("refused", n)
        except Exception:
            # What the loss of a server does to kombu's connection, its next use shows; only a new process gets over that.
            note("refused", n)
            os.execv(sys.executable, [sys.executable, *sys.argv[:3], str(n + 1)])


if role == "add":
    add()
else:
    signals.worker_ready.connect(lambda **_: note("ready"), weak=False)
    app.worker_main(["worker", "--concurrency", "2", "--loglevel", "CRITICAL", "--without-gossip", "--without-mingle"])
