import { expect } from 'chai';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { GroupChanges } from './group-changes.ts';

describe('changes of watched groups', () => {
  it('are read again until they can be, so that no device is shown that has left', async () => {
    const reads: string[] = [];
    let isAvailable = false;
    const changes = new GroupChanges((tenantId, groupId) => {
      reads.push(`${tenantId}/${groupId}`);
      return isAvailable ? Promise.resolve(['left alone']) : Promise.reject(new Error('the database is unavailable'));
    }, createLogger('silent'));
    const shown = new Map<string, readonly string[]>();
    /** A session that watches two groups. */
    const session = {
      watchedGroups: ['one', 'other'],
      changeGroup: (groupId: string, members: readonly string[]) => !!shown.set(groupId, members),
      update: () => undefined,
    };
    changes.follow('acme', session);
    changes.follow('acme', { ...session });
    changes.note('acme/one');
    await eventually(() => reads.length === 1);
    await eventually(() => reads.length === 2);
    isAvailable = true;
    await eventually(() => shown.has('one'));
    changes.close();
    expect(shown).to.deep.equal(new Map([['one', ['left alone']]]));
    expect(reads).to.deep.equal(['acme/one', 'acme/one', 'acme/one']);
  });

  it('are shown to the sessions of a tenant while those of another cannot be read for long', async () => {
    const shown: string[] = [];
    const changes = new GroupChanges(
      (tenantId) => (tenantId === 'slow' ? new Promise(() => undefined) : Promise.resolve([])),
      createLogger('silent'),
    );
    const session = (tenantId: string) => ({
      watchedGroups: ['one'],
      changeGroup: () => true,
      update: () => void shown.push(tenantId),
    });
    for (const tenantId of ['slow', 'acme']) {
      changes.follow(tenantId, session(tenantId));
      changes.note(`${tenantId}/one`);
    }
    await eventually(() => shown.length === 1);
    changes.note('acme/one');
    await eventually(() => shown.length === 2);
    changes.close();
    expect(shown).to.deep.equal(['acme', 'acme']);
  });
});
