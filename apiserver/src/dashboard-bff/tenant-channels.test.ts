// The channels of the whole tenant, with a broker that responds when it may.
import { expect } from 'chai';
import { auditSubject, statusSubject } from '../platform/events/subjects.ts';
import { type Caller, publicCaller } from '../platform/rpc.ts';
import { allScopes } from '../platform/scopes.ts';
import { refusal } from '../platform/testing/refusals.ts';
import type { EventListener } from './event-feed.ts';
import { TenantChannels } from './tenant-channels.ts';

const callerWith = (scopes: readonly string[]): Caller => ({
  ...{ ...publicCaller, kind: 'user', tenantId: 'acme', scopes: new Set(scopes) },
});

/** Channels whose subscriptions are made once `let` is called. */
function channels() {
  const shown: string[] = [];
  let stopped = 0;
  let listener: EventListener = () => undefined;
  let make: () => void = () => undefined;
  const made = new Promise<void>((resolve) => (make = resolve));
  const stop = () => (stopped += 1);
  const parts = {
    rollouts: { subscribe: () => made.then(() => ({ current: () => '', stop })) },
    events: {
      subscribe: (_tenantId: string, given: EventListener) => {
        listener = given;
        return made.then(() => stop);
      },
    },
  } as unknown as ConstructorParameters<typeof TenantChannels>[0];
  const subject = new TenantChannels(parts, callerWith(allScopes), {
    push: (_key, message) => shown.push(String(message)),
  });
  const emit = (of: string) => listener('id', of, of);
  return { subject, shown, emit, make, stopped: () => stopped };
}

describe('subscriptions to what the whole tenant shows', () => {
  const without = (scope: string) => callerWith(allScopes.filter((held) => held !== scope));

  it('are refused to callers who lose the scope while they are made', async () => {
    for (const [scope, watch] of [
      ['events:read', (of: TenantChannels) => of.watchEvents()],
      ['ota:read', (of: TenantChannels) => of.watchRollout('r')],
    ] as const) {
      const { subject, make, stopped } = channels();
      const watching = refusal(watch(subject));
      expect(subject.check(without(scope))).to.equal(undefined);
      make();
      expect((await watching).code).to.equal('PERMISSION_DENIED');
      expect(stopped(), 'the subscription is not kept').to.equal(1);
    }
  });

  it('need, as to rollouts, the scope ota:read alone, and are refused to callers who are limited', async () => {
    const watch = async (caller: Caller): Promise<string> => {
      const { subject, make } = channels();
      make();
      expect(subject.check(caller)).to.equal(undefined);
      return subject.watchRollout('r').then(
        () => 'OK',
        ({ code }: { code: string }) => code,
      );
    };
    const alone = callerWith(['ota:read']);
    expect(await watch(alone)).to.equal('OK');
    for (const scope of ['ota:read', 'telemetry:read']) {
      const limitedGrants = [{ scopes: [scope], deviceGroupIds: ['g'] }];
      expect(await watch({ ...without(scope), limitedGrants }), scope).to.equal('PERMISSION_DENIED');
    }
    expect(await watch({ ...alone, customerId: 'c' })).to.equal('PERMISSION_DENIED');
    expect(await watch(without('ota:read'))).to.equal('PERMISSION_DENIED');
  });

  it('are refused, as to events, to callers who read points, devices, alarms or rollouts of a part of the tenant, or not at all', async () => {
    for (const scope of ['telemetry:read', 'devices:read', 'alarms:read', 'ota:read', 'events:read']) {
      for (const deviceGroupIds of [['g'], undefined]) {
        const { subject } = channels();
        const limitedGrants = deviceGroupIds ? [{ scopes: [scope], deviceGroupIds }] : [];
        expect(subject.check({ ...without(scope), limitedGrants })).to.equal(undefined);
        expect((await refusal(subject.watchEvents())).code, scope).to.equal('PERMISSION_DENIED');
      }
    }
  });

  it('show no events of the audit log to callers who lose a scope while they are made', async () => {
    const { subject, shown, emit, make } = channels();
    const watching = subject.watchEvents();
    subject.check(without('devices:write'));
    make();
    await watching;
    emit(auditSubject('acme', 'e'));
    emit(statusSubject('acme', 'd'));
    expect(shown).to.deep.equal([statusSubject('acme', 'd')]);
  });
});
