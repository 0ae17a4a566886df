// Progress output of the demo: timestamped lines and counters.

/** Writes to the terminal. */
export class Terminal {
  private readonly started: number;
  private readonly now: () => number;
  private readonly write: (text: string) => void;
  private lastCount = { line: '', at: 0 };

  /** `now` returns milliseconds; `write` outputs text unchanged. */
  constructor(now: () => number = () => performance.now(), write = (text: string) => void process.stdout.write(text)) {
    this.now = now;
    this.write = write;
    this.started = now();
  }

  /** Seconds since the demo began. */
  get seconds(): number {
    return (this.now() - this.started) / 1000;
  }

  /** Prints a line of progress. */
  say(line: string): void {
    this.write(`${this.seconds.toFixed(1).padStart(6)} s  ${line}\n`);
  }

  /** Prints the heading of a part. */
  chapter(letter: string, title: string): void {
    this.write('\n');
    this.say(`${letter}. ${title}`);
  }

  /** Prints text unchanged, for example the output of a command. */
  print(text: string): void {
    this.write(text.endsWith('\n') ? text : `${text}\n`);
  }

  /**
   * Prints a counter: at most two lines per second, the final one once, and one every five seconds without progress.
   */
  count(what: string, done: number, total: number): void {
    const line = `   ${what}: ${done.toLocaleString('en')} of ${total.toLocaleString('en')}`;
    const rest = this.now() - this.lastCount.at;
    if (line === this.lastCount.line ? done === total || rest < 5000 : done < total && rest < 500) return;
    this.lastCount = { line, at: this.now() };
    this.say(line);
  }
}
