// BullMQ: plain, delayed, prioritised and repeated jobs, one that fails, a flow; none is lost, none runs twice.
const assert = require('node:assert');
const { FlowProducer, Queue, QueueEvents, Worker } = require('bullmq');

const connection = { host: '127.0.0.1', port: Number(process.argv[2]), maxRetriesPerRequest: null };

async function main() {
  const queue = new Queue('jobs', { connection });
  const events = new QueueEvents('jobs', { connection });
  await events.waitUntilReady();
  const runs = {};
  const names = [];
  const run = async (job) => {
    runs[job.id] = (runs[job.id] || 0) + 1;
    names.push(job.name);
    if (job.name === 'failing') throw new Error('as it should');
    return 2 * job.data.n;
  };
  const worker = new Worker('jobs', run, { connection, concurrency: 10 });
  const jobs = [];
  for (let n = 0; n < 300; n++) jobs.push(await queue.add('plain', { n }));
  const bulk = await queue.addBulk([...Array(200).keys()].map((n) => ({ name: 'bulk', data: { n } })));
  const delayed = await queue.add('delayed', { n: 1 }, { delay: 500 });
  const prioritised = await queue.add('prioritised', { n: 2 }, { priority: 5 });
  const failing = await queue.add('failing', {}, { attempts: 3, backoff: 50 });
  await queue.upsertJobScheduler('repeated', { every: 200, limit: 5 }, { name: 'repeated', data: { n: 1 } });

  const results = await Promise.all([...jobs, ...bulk].map((job) => job.waitUntilFinished(events, 60_000)));
  assert.deepStrictEqual(results, [...Array(300).keys(), ...Array(200).keys()].map((n) => 2 * n));
  assert.strictEqual(await delayed.waitUntilFinished(events, 60_000), 2);
  assert.strictEqual(await prioritised.waitUntilFinished(events, 60_000), 4);
  await assert.rejects(failing.waitUntilFinished(events, 60_000), /as it should/);
  const flow = new FlowProducer({ connection });
  const child = (n) => ({ name: `child${n}`, queueName: 'jobs', data: { n } });
  const tree = await flow.add({ name: 'parent', queueName: 'jobs', data: { n: 7 }, children: [child(1), child(2)] });
  assert.strictEqual(await tree.job.waitUntilFinished(events, 60_000), 14);
  assert.deepStrictEqual(Object.values(await tree.job.getChildrenValues()).sort(), [2, 4]);
  while (names.filter((name) => name === 'repeated').length < 5) await new Promise((done) => setTimeout(done, 50));
  const twice = Object.entries(runs).filter(([id, times]) => times > (id === failing.id ? 3 : 1));
  assert.deepStrictEqual(twice, []);
  await Promise.all([worker, events, queue, flow].map((one) => one.close()));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
