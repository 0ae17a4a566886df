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

  it('of limited users count while they wait, so that those of many sockets at once watch no more devices than they may', async () => {
    const review = Promise.withResolvers<void>();
    let reads = 0;
    const parts = {
      devices: {
        lookup: async (_tenantId: string, ids: readonly string[]) =>
          new Map(ids.map((deviceId) => [deviceId, { deviceId }])),
      },
      visibleDevices: async (_tenantId: string, ids: readonly string[]) => {
        reads += 1;
        if (reads > 5) await review.promise;
        return new Set(ids);
      },
      ...{ live: new LiveHub(), turns: new DecodingTurns(), subscribed: new Tally() },
      limits: { ...defaultConnectionLimits, subscribedOfTenant: 250 },
      memory: new MemoryBudget({ total: 1e6, perOwner: 1e6 }),
    } as unknown as SessionParts;
    const limitedGrants = [{ scopes: ['telemetry:read'], deviceGroupIds: ['g'] }];
    const caller = { tenantId: 'acme', customerId: '', scopes: new Set(), limitedGrants } as unknown as Caller;
    const socket = { bufferedAmount: 0, sendFrame: () => undefined, pause: () => undefined, resume: () => undefined };
    const ends = { denied: () => undefined, tooSlow: () => undefined, flooded: () => undefined };
    const answers: string[] = [];
    const send = (text: string, done: () => void): void => {
      answers.push(text.includes('RESOURCE_EXHAUSTED') ? 'refused' : text);
      done();
    };
    const sessions = Array.from({ length: 5 }, () => new Session(parts, caller, { ...socket, send }, ends));
    for (const session of sessions) {
      const ids = Array.from({ length: 100 }, newId);
      session.receive(JSON.stringify({ subscribe: 'telemetry.live', device_ids: ids }));
    }
    await eventually(() => reads >= 7);
    review.resolve();
    await eventually(() => answers.length === 5);
    expect(answers.filter((answer) => answer === 'refused')).to.have.length(3);
    expect(parts.subscribed.of('acme')).to.equal(200);
    for (const session of sessions) session.close();
    expect(parts.subscribed.of('acme')).to.equal(0);
  });
});
