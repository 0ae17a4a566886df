import { expect } from 'chai';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { GroupChanges } from './group-changes.ts';
import type { GroupMembers } from './session.ts';

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
      refreshGroups: async (changed: ReadonlySet<string> | undefined, read: GroupMembers) => {
        for (const groupId of ['one', 'other']) {
          if (changed?.has(`acme/${groupId}`) === false) continue;
          await read('acme', groupId).then(
            (members) => shown.set(groupId, members ?? []),
            () => undefined,
          );
        }
      },
    };
    changes.follow(session);
    changes.follow(session);
    changes.note('acme/one');
    await eventually(() => reads.length === 1);
    await eventually(() => reads.length === 2);
    isAvailable = true;
    await eventually(() => shown.has('one'));
    changes.close();
    expect(shown).to.deep.equal(new Map([['one', ['left alone']]]));
    expect(reads).to.deep.equal(['acme/one', 'acme/one', 'acme/one']);
  });
});
