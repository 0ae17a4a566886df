// The /ws channels rollouts and events, through the client library.
import { type LiveConnection, LiveError, type LiveMessage, type Schema } from '@kellet/client';
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeFleet, makePackage, makeProfile, makeUser, otherAdmin, unique } from '../testing/fixtures.ts';

type Collected = { messages: LiveMessage[]; ended: Promise<void> };

describe('the channels of /ws', function () {
  this.timeout(60_000);

  /** Collects what arrives on a connection. */
  const collect = (live: LiveConnection): Collected => {
    const messages: LiveMessage[] = [];
    const ended = (async () => {
      for await (const message of live) messages.push(message);
    })();
    return { messages, ended };
  };
  const codeOf = (work: Promise<unknown>) =>
    work.then(
      () => 'OK',
      (error: unknown) => (error instanceof LiveError ? error.code : String(error)),
    );

  it('show a rollout from its start to its end, and the events of the tenant alone', async () => {
    const rest = await admin();
    const profile = await makeProfile(rest);
    const fleet = await makeFleet(rest, profile.profile_id, 4);
    const { package_id } = await makePackage(rest, { version: '1.0.0', compatibility: { device_type: profile.type } });
    const lives = [await rest.client.live(), await rest.client.live()] as const;
    const foreign = await (await otherAdmin()).client.live();
    const [first, second, theirs] = [collect(lives[0]), collect(lives[1]), collect(foreign)];
    for (const live of [...lives, foreign]) await live.subscribe({ channel: 'events' });
    const { rollout_id } = await rest.client.post('/api/v1/ota/rollouts', {
      body: {
        ...{ package_id, target_profile_id: profile.profile_id, canary_percent: 100, name: unique('live') },
        failure_threshold_percent: 10,
      },
    });
    for (const live of lives) await live.subscribe({ channel: 'rollouts', rollout_id });
    expect(await codeOf(foreign.subscribe({ channel: 'rollouts', rollout_id }))).to.equal('NOT_FOUND');

    const report = (index: number, status: 'success' | 'failure') => {
      const { deviceId, apiKey } = fleet.devices[index]!;
      return new Rest(rest.base, apiKey).post(`/api/v1/devices/${deviceId}/ota/report`, {
        ...{ device_id: deviceId, rollout_id, status, firmware_version: status === 'success' ? '1.0.0' : '0.9.0' },
      });
    };
    const rolloutsOf = ({ messages }: Collected) =>
      messages.flatMap((message) => (message.channel === 'rollouts' ? [message.rollout] : []));
    const eventsOf = ({ messages }: Collected) =>
      messages.flatMap((message) => (message.channel === 'events' ? [message.event] : []));
    const last = (of: Collected) => rolloutsOf(of).at(-1);
    const until = (what: string, holds: () => boolean) => waitUntil(holds, { what, timeoutMilliseconds: 20_000 });

    await until('the state at first', () => [first, second].every((of) => last(of)?.status === 'active'));
    await report(0, 'failure');
    await until('the pause', () => [first, second].every((of) => last(of)?.status === 'paused'));
    expect(last(first)).to.deep.include({ pause_reasons: ['failure_threshold_exceeded'] });
    expect(last(first)!.counts).to.include({ failed: 1, scheduled: 4 });
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/skip`, { device_ids: [fleet.devices[0]!.deviceId] });
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/resume`, {});
    for (const index of [1, 2, 3]) await report(index, 'success');
    await until('the end', () => [first, second].every((of) => last(of)?.status === 'completed'));
    // As REST shows it.
    const shown = await rest.get<Schema<'Rollout'>>(`/api/v1/ota/rollouts/${rollout_id}`);
    expect({ ...last(first), updated_at: '' }).to.deep.equal({ ...shown, updated_at: '' });

    const names = ['started', 'paused', 'resumed', 'completed'];
    const typesOf = (of: Collected) =>
      eventsOf(of).flatMap(({ type, subject }) =>
        subject === rollout_id && type.startsWith('profile.') ? [type.split('.')[3]] : [],
      );
    await until('the events', () => [first, second].every((of) => typesOf(of).includes('completed')));
    for (const side of [first, second]) {
      expect(typesOf(side)).to.deep.equal(names);
      expect(new Set(eventsOf(side).map(({ tenantid }) => tenantid)).size).to.equal(1);
    }
    expect(eventsOf(theirs).filter(({ subject }) => subject === rollout_id)).to.deep.equal([]);
    for (const live of [...lives, foreign]) live.close();
    await Promise.all([first.ended, second.ended, theirs.ended]);
  });

  it('are refused to users of customers and end when the user is disabled', async () => {
    const rest = await admin();
    const { customer_id } = await rest.post<{ customer_id: string }>('/api/v1/customers', { name: unique('customer') });
    const viewer = await makeUser(rest, 'viewer');
    const live = await viewer.rest.client.live();
    const { ended } = collect(live);
    await live.subscribe({ channel: 'events' });
    await rest.patch(`/api/v1/auth/users/${viewer.user_id}`, { customer_id });
    expect(await codeOf(ended)).to.be.oneOf([4401, 4403]);
    const limited = await viewer.rest.client.live();
    expect(await codeOf(limited.subscribe({ channel: 'events' }))).to.equal('PERMISSION_DENIED');
    const rollout = { channel: 'rollouts', rollout_id: unique('none') } as const;
    expect(await codeOf(limited.subscribe(rollout))).to.equal('PERMISSION_DENIED');
    limited.close();
  });
});
