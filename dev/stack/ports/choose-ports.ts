// Chooses the port of each listener of the stack: the requested one, else the default or the last one if it is free.
import { readFile, writeFile } from 'node:fs/promises';

/** A listener that needs a port. */
export interface PortWish<Name extends string = string> {
  name: Name;
  /** The environment variable that sets it, and its value: a number, 0 for any free port, or nothing. */
  variable?: string;
  asked?: string | undefined;
  /** The default, used if it is free and no port was requested. */
  usual?: number;
}

/** Facts of the machine that the choice depends on. */
export interface PortSources {
  isFree: (port: number) => Promise<boolean>;
  findFree: (...names: readonly string[]) => Promise<Readonly<Record<string, number>>>;
  /** Ports of the last run by name, used again if free, so that addresses are stable. */
  remembered: Readonly<Record<string, number>>;
  report: (line: string) => void;
}

/**
 * Chooses a port for every listener. Throws if a requested port is taken; a default that is taken is replaced by a free
 * port and reported.
 */
export async function choosePorts<Name extends string>(
  wishes: readonly PortWish<Name>[],
  { isFree, findFree, remembered, report }: PortSources,
): Promise<Record<Name, number>> {
  const chosen: Partial<Record<Name, number>> = {};
  const given = new Set<number>();
  // Free ports for the remaining listeners, excluding those that others may get.
  const named = new Set(wishes.flatMap(({ usual, asked }) => [usual, Number(asked)]));
  const free = await findFree(...[...wishes, ...named].map((_, index) => String(index)));
  const spare = Object.values(free).filter((port) => !named.has(port));
  for (const { name, variable, asked, usual } of wishes) {
    const explicit = asked === undefined || asked === '' ? undefined : Number(asked);
    if (explicit !== undefined && !(Number.isInteger(explicit) && explicit >= 0 && explicit <= 65_535)) {
      throw new Error(`${variable} must be a port number, or 0 for any free port`);
    }
    if (explicit && (given.has(explicit) || !(await isFree(explicit)))) {
      throw new Error(`port ${explicit} (${variable}) is taken`);
    }
    const candidates = explicit === undefined ? [usual, remembered[name]] : explicit ? [explicit] : [];
    let port: number | undefined;
    for (const candidate of candidates) {
      if (candidate === undefined || given.has(candidate)) continue;
      if (explicit === candidate || (await isFree(candidate))) {
        port = candidate;
        break;
      }
    }
    while (port === undefined || given.has(port)) port = spare.shift()!;
    if (explicit === undefined && usual !== undefined && port !== usual) {
      report(`port ${usual} is taken, ${name} listens on ${port}`);
    }
    chosen[name] = port;
    given.add(port);
  }
  return chosen as Record<Name, number>;
}

/** Reads the ports of the last run, if any. */
export async function readPorts(path: string): Promise<Record<string, number>> {
  try {
    return JSON.parse(await readFile(path, 'utf8')) as Record<string, number>;
  } catch {
    return {};
  }
}

/** Stores the ports for the next run. */
export async function writePorts(path: string, ports: Readonly<Record<string, number>>): Promise<void> {
  await writeFile(path, `${JSON.stringify(ports, undefined, 2)}\n`, { mode: 0o600 });
}
