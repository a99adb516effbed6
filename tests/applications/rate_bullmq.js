// BullMQ at full rate: `add` adds jobs until its input ends, `work` does them until it is told to end. What happens to each is
// noted in the file TARN_NOTES, as rate.rs reads it: time in ms, what, the job's number, and which of its deliveries.
const fs = require('node:fs');
const { Queue, Worker } = require('bullmq');

const [role, port] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port) };
const file = fs.openSync(process.env.TARN_NOTES, 'a');
const note = (...what) => fs.writeSync(file, `${Date.now()} ${what.join(' ')}\n`);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
// Stays within what workers get done, so that little is left at the end.
const BACKLOG = 1000;

// Some come later, and some before others.
function options(n) {
  if (n % 20 === 0) return { delay: Math.floor(Math.random() * 300) };
  if (n % 20 === 1) return { priority: 1 + Math.floor(Math.random() * 5) };
  return {};
}

async function add() {
  const queue = new Queue('rate', { connection });
  queue.on('error', () => {});
  let next = 0;
  let ended = false;
  process.stdin.resume().on('end', () => { ended = true; });
  const adder = async () => {
    while (!ended) {
      if (next % 50 === 0) while (!ended && await queue.count() > BACKLOG) await pause(20);
      const n = next++;
      note('add', n);
      try {
        await queue.add('job', { n }, options(n));
        note('added', n);
      } catch (error) {
        note('refused', n);
      }
    }
  };
  await Promise.all([...Array(8)].map(adder));
  process.exit(0);
}

async function work() {
  let deliveries = 0;
  const run = async (job) => {
    await pause(Math.random() * 4);
    note('ran', job.data.n, job.delivery);
  };
  // What a killed server leaves is taken up soon, and no number of stalls makes a job fail.
  const stalls = process.env.TARN_KILLED ? { lockDuration: 10_000, stalledInterval: 1000, maxStalledCount: 1_000_000 } : {};
  const worker = new Worker('rate', run, { connection, concurrency: 20, ...stalls });
  worker.on('error', () => {});
  // Before it is run, which may take long: the worker may first wait for further jobs.
  worker.on('active', (job) => {
    job.delivery = deliveries++;
    note('got', job.data.n, job.delivery);
  });
  worker.on('completed', (job) => note('done', job.data.n, job.delivery));
  process.on('SIGTERM', () => worker.close().then(() => process.exit(0)));
  await worker.waitUntilReady();
  note('ready');
}

({ add, work })[role]();
