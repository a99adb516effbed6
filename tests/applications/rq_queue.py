"""RQ: jobs, a failing one, one that waits for another, one for later; a worker that ends when there is nothing left."""

import datetime
import os
import subprocess
import sys

import redis
from rq import Queue

import rq_jobs

port = int(sys.argv[1])
queue = Queue(connection=redis.Redis(port=port))
jobs = [queue.enqueue(rq_jobs.double, n) for n in range(50)]
failing = queue.enqueue(rq_jobs.fail)
after = queue.enqueue(rq_jobs.double, 21, depends_on=jobs[0])
later = queue.enqueue_in(datetime.timedelta(hours=1), rq_jobs.double, 1)
worker = [sys.executable, "-m", "rq.cli", "worker", "--burst", "--url", f"redis://127.0.0.1:{port}"]
here = os.path.dirname(os.path.abspath(__file__))
subprocess.run(worker, cwd=here, check=True, timeout=60, capture_output=True)

assert [job.return_value(refresh=True) for job in jobs] == [2 * n for n in range(50)]
assert failing.get_status(refresh=True) == "failed"
assert after.return_value(refresh=True) == 42
assert later.get_status(refresh=True) == "scheduled"
