// Threads for work that would hold up the event loop, or the few threads that Node shares between files, look-ups of names and
// cryptography. A thread is started when it is needed and ended when it has had nothing to do for a while.
import { once } from 'node:events';
import { setPriority } from 'node:os';
import { Worker } from 'node:worker_threads';

const idleMilliseconds = 30_000;

/** Of threads in the background (nice(1)): a tenth of a core that others want, and all of one that is idle. */
const backgroundPriority = 10;

/**
 * Runs a file in threads, each of which answers one question at a time: it receives the question as a message and sends one in
 * return. The caller limits how many ask at a time.
 */
export class ThreadPool<Question, Answer> {
  private readonly file: URL;
  private readonly patienceMilliseconds: number;
  /** Those that wait for a question, with the timers that end them. */
  private readonly idle = new Map<Worker, NodeJS.Timeout>();

  /** A thread that takes longer than `patienceMilliseconds` for a question is ended. */
  constructor(file: URL, patienceMilliseconds: number) {
    this.file = file;
    this.patienceMilliseconds = patienceMilliseconds;
  }

  /** Returns the thread's answer. Throws if the thread fails or takes too long. */
  async ask(question: Question): Promise<Answer> {
    const thread = this.take();
    try {
      thread.postMessage(question);
      const signal = AbortSignal.timeout(this.patienceMilliseconds);
      // Rejects with the error of a thread that has failed.
      const [answer] = (await once(thread, 'message', { signal })) as [Answer];
      this.keep(thread);
      return answer;
    } catch (error) {
      end(thread);
      throw error;
    }
  }

  private take(): Worker {
    const [kept] = this.idle;
    if (!kept) return new Worker(this.file);
    const [thread, timer] = kept;
    clearTimeout(timer);
    this.idle.delete(thread);
    thread.ref();
    return thread;
  }

  private keep(thread: Worker): void {
    // A process that waits for nothing else ends.
    thread.unref();
    const timer = setTimeout(() => {
      this.idle.delete(thread);
      end(thread);
    }, idleMilliseconds);
    timer.unref();
    this.idle.set(thread, timer);
  }
}

function end(thread: Worker): void {
  thread.on('error', () => undefined);
  void thread.terminate();
}

/**
 * Gives the thread that calls this a lower priority than the threads that serve requests. Only Linux knows priorities of
 * threads; elsewhere the call would concern the whole process.
 */
export function runInBackground(): void {
  if (process.platform === 'linux') setPriority(backgroundPriority);
}
