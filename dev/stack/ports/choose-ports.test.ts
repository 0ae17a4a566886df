import { createServer } from 'node:net';
import { expect } from 'chai';
import { choosePorts, type PortWish } from './choose-ports.ts';
import { findFreePorts, isPortFree } from './free-ports.ts';

const rest = (asked?: string): PortWish => ({ name: 'rest', variable: 'KELLET_REST_PORT', asked, usual: 8080 });
const postgres: PortWish = { name: 'postgres' };

describe('stack: choice of ports', () => {
  const cases: [
    string,
    PortWish[],
    { taken?: number[]; remembered?: Record<string, number> },
    Record<string, number>,
  ][] = [
    ['the default port if it is free', [rest()], {}, { rest: 8080 }],
    ['a free port if the default is taken', [rest()], { taken: [8080] }, { rest: 50_000 }],
    ['the last port if the default is taken', [rest()], { taken: [8080], remembered: { rest: 7 } }, { rest: 7 }],
    ['the requested port', [rest('8888')], {}, { rest: 8888 }],
    ['any free port for 0', [rest('0')], { remembered: { rest: 7 } }, { rest: 50_000 }],
    ['the default port for an empty value', [rest('')], {}, { rest: 8080 }],
    ['the last port of an internal listener', [postgres], { remembered: { postgres: 7 } }, { postgres: 7 }],
    ['a new one if that is taken', [postgres], { taken: [7], remembered: { postgres: 7 } }, { postgres: 50_000 }],
    [
      'no port twice',
      [postgres, { name: 'nats' }],
      { remembered: { postgres: 7, nats: 7 } },
      { postgres: 7, nats: 50_000 },
    ],
  ];
  for (const [title, wishes, { taken = [], remembered = {} }, want] of cases) {
    it(`chooses ${title}`, async () => {
      const isFree = async (port: number) => !taken.includes(port);
      const findFree = async (...names: readonly string[]) =>
        Object.fromEntries(names.map((name, index) => [name, 50_000 + index]));
      const chosen = await choosePorts(wishes, { isFree, findFree, remembered, report: () => undefined });
      expect(chosen).to.deep.equal(want);
    });
  }

  const refused: [string, string, number[], string][] = [
    ['a requested port that is taken', '8888', [8888], 'port 8888 (KELLET_REST_PORT) is taken'],
    ['a value that is not a number', 'http', [], 'KELLET_REST_PORT must be a port number'],
    ['a number beyond 65535', '65536', [], 'KELLET_REST_PORT must be a port number'],
    ['a negative number', '-1', [], 'KELLET_REST_PORT must be a port number'],
  ];
  for (const [title, asked, taken, message] of refused) {
    it(`rejects ${title}`, async () => {
      const isFree = async (port: number) => !taken.includes(port);
      const sources = { isFree, findFree: async () => ({ '0': 50_000 }), remembered: {}, report: () => undefined };
      const error = await choosePorts([rest(asked)], sources).then(
        () => undefined,
        (reason: Error) => reason.message,
      );
      expect(error).to.include(message);
    });
  }

  it('reports which port replaces the default', async () => {
    const lines: string[] = [];
    const sources = { isFree: async () => false, findFree: async () => ({ '0': 50_000 }), remembered: {} };
    await choosePorts([rest()], { ...sources, report: (line) => lines.push(line) });
    expect(lines).to.deep.equal(['port 8080 is taken, rest listens on 50000']);
  });
});

describe('stack: free ports', () => {
  it('are distinct, and reported as taken once in use', async () => {
    const { first, ...others } = await findFreePorts('first', 'second', 'third', 'fourth', 'fifth');
    expect(new Set([first, ...Object.values(others)]).size).to.equal(5);
    // Outgoing connections of the machine cannot take it.
    expect(first).to.be.within(15_000, 29_999);
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(first, '127.0.0.1', resolve));
    expect(await isPortFree(first)).to.equal(false);
    await new Promise((resolve) => server.close(resolve));
    expect(await isPortFree(first)).to.equal(true);
  });
});
