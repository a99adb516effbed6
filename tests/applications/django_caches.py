"""Django's own cache and django-redis's, and the layers of Channels, by lists and by pub/sub."""

import asyncio
import sys

import django
from django.conf import settings

port = int(sys.argv[1])
url = f"redis://127.0.0.1:{port}"
own = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"{url}/3"}
other = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"{url}/4"}
settings.configure(CACHES={"default": own, "other": other})
django.setup()

from channels_redis.core import RedisChannelLayer
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.core.cache import caches

for name in ("default", "other"):
    cache = caches[name]
    cache.clear()
    cache.set("a", 1, 30)
    cache.set_many({"b": 2, "c": [1, 2]})
    cache.incr("a")
    assert cache.get("a") == 2 and cache.get_many(["b", "c", "d"]) == {"b": 2, "c": [1, 2]}
    assert not cache.add("a", 5) and cache.touch("a", 50) and cache.delete("a") and cache.get("a") is None
cache = caches["other"]
cache.set("x:1", 1)
cache.set("x:2", 2)
assert sorted(cache.keys("x:*")) == ["x:1", "x:2"] and cache.delete_pattern("x:*") == 2
with cache.lock("lock", timeout=5):
    pass


async def layers():
    for kind in (RedisChannelLayer, RedisPubSubChannelLayer):
        layer = kind(hosts=[("127.0.0.1", port)])
        channel = await layer.new_channel()
        await layer.group_add("group", channel)
        await layer.group_send("group", {"type": "to.all", "n": 1})
        assert await asyncio.wait_for(layer.receive(channel), 30) == {"type": "to.all", "n": 1}
        await layer.send(channel, {"type": "to.one"})
        assert await asyncio.wait_for(layer.receive(channel), 30) == {"type": "to.one"}
        await layer.group_discard("group", channel)


asyncio.run(layers())
