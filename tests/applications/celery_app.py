"""The tasks of celery_tasks.py; the port of the server comes by the environment, as the workers read this file, too."""

import os

from celery import Celery

url = f"redis://127.0.0.1:{os.environ['TARN_PORT']}"
app = Celery("celery_app", broker=f"{url}/1", backend=f"{url}/2")


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)
