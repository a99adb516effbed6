"""redis-py's lock and redlock's: what they guard is done by one at a time."""

import sys
import threading

import redis
from redlock import Redlock

port = int(sys.argv[1])
count = 0


def work():
    global count
    client = redis.Redis(port=port)
    for _ in range(20):
        with client.lock("lock", timeout=30, blocking_timeout=60):
            before = count
            count = before + 1


threads = [threading.Thread(target=work) for _ in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert count == 100

client = redis.Redis(port=port)
lock = client.lock("other", timeout=10)
assert lock.acquire() and lock.extend(5) and lock.reacquire()
lock.release()

many = Redlock([{"host": "127.0.0.1", "port": port}])
held = many.lock("resource", 10_000)
assert held and not Redlock([{"host": "127.0.0.1", "port": port}], retry_count=1).lock("resource", 1000)
many.unlock(held)
assert many.lock("resource", 1000)
