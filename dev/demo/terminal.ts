// What the demo says while it runs: a line with the time at its beginning, and counters that move.

/** Writes to the terminal. */
export class Terminal {
  readonly #started: number;
  readonly #now: () => number;
  readonly #write: (text: string) => void;
  #lastCount = { line: '', at: 0 };

  /** `now` in milliseconds, `write` takes text as it is to appear. */
  constructor(now: () => number = () => performance.now(), write = (text: string) => void process.stdout.write(text)) {
    this.#now = now;
    this.#write = write;
    this.#started = now();
  }

  /** Seconds since the demo began. */
  get seconds(): number {
    return (this.#now() - this.#started) / 1000;
  }

  /** A line of progress. */
  say(line: string): void {
    this.#write(`${this.seconds.toFixed(1).padStart(6)} s  ${line}\n`);
  }

  /** The beginning of a part of the story. */
  chapter(letter: string, title: string): void {
    this.#write('\n');
    this.say(`${letter}. ${title}`);
  }

  /** Text as it is, for example what a command printed. */
  print(text: string): void {
    this.#write(text.endsWith('\n') ? text : `${text}\n`);
  }

  /** A counter: at most two lines a second, the last one once, and one every five seconds when nothing moves. */
  count(what: string, done: number, total: number): void {
    const line = `   ${what}: ${done.toLocaleString('en')} of ${total.toLocaleString('en')}`;
    const rest = this.#now() - this.#lastCount.at;
    if (line === this.#lastCount.line ? done === total || rest < 5000 : done < total && rest < 500) return;
    this.#lastCount = { line, at: this.#now() };
    this.say(line);
  }
}
