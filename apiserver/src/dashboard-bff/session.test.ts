import { setImmediate } from 'node:timers/promises';
import { expect } from 'chai';
import { DecodingTurns } from '../gateway/memory/decoding-turns.ts';
import { MemoryBudget } from '../gateway/memory/memory-budget.ts';
import { Tally } from '../platform/concurrency/tally.ts';
import { newId } from '../platform/ids.ts';
import type { Caller } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { LiveHub } from '../telemetry/live/live.ts';
import { defaultConnectionLimits } from './connections.ts';
import { Session, type SessionParts } from './session.ts';

describe('the messages of clients of /ws', () => {
  it('that name many devices let others run after a few of them, whichever sockets they come from', async () => {
    let handled = 0;
    const parts = {
      devices: {
        lookup: async (_tenantId: string, ids: readonly string[]) => {
          handled += 1;
          return new Map(ids.map((deviceId) => [deviceId, { deviceId }]));
        },
      },
      ...{ live: new LiveHub(), turns: new DecodingTurns(), subscribed: new Tally(), limits: defaultConnectionLimits },
      memory: new MemoryBudget({ total: 1e6, perOwner: 1e6 }),
    } as unknown as SessionParts;
    const caller = { tenantId: 'acme', customerId: '', scopes: new Set(['telemetry:read']), limitedGrants: [] };
    const socket = { bufferedAmount: 0, sendFrame: () => undefined, pause: () => undefined, resume: () => undefined };
    const ends = { denied: () => undefined, tooSlow: () => undefined, flooded: () => undefined };
    const message = JSON.stringify({ subscribe: 'telemetry.live', device_ids: Array.from({ length: 1000 }, newId) });
    let answered = 0;
    const send = (_text: string, done: () => void): void => {
      answered += 1;
      done();
    };
    for (let n = 0; n < 40; n += 1) {
      new Session(parts, caller as unknown as Caller, { ...socket, send }, ends).receive(message);
    }
    // Those that are handled as soon as they arrive.
    const atOnce = [handled];
    while (answered < 40) {
      const before = handled;
      await setImmediate();
      atOnce.push(handled - before);
    }
    expect(Math.max(...atOnce)).to.be.at.most(8);
    await eventually(() => handled === 40);
  });
});
