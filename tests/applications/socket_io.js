// Socket.IO's adapter: two servers that know of each other by pub/sub alone.
const assert = require('node:assert');
const { createAdapter } = require('@socket.io/redis-adapter');
const { createClient } = require('redis');
const { Server } = require('socket.io');

async function server() {
  const publisher = createClient({ url: `redis://127.0.0.1:${process.argv[2]}` });
  const subscriber = publisher.duplicate();
  await Promise.all([publisher.connect(), subscriber.connect()]);
  const io = new Server();
  io.adapter(createAdapter(publisher, subscriber));
  return io;
}

async function main() {
  const [one, other] = [await server(), await server()];
  other.on('hello', (who, answer) => answer(`hello ${who}`));
  for (;;) {
    // Until both have subscribed.
    const answers = await new Promise((done) => one.serverSideEmit('hello', 'world', (error, all) => done(error ? [] : all)));
    if (answers.length > 0) {
      assert.deepStrictEqual(answers, ['hello world']);
      break;
    }
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.deepStrictEqual(await one.fetchSockets(), []);
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
