import { expect } from 'chai';
import { eventually } from '../platform/testing/eventually.ts';
import { DeviceChanges } from './device-changes.ts';

describe('Reviews of what limited users watch', () => {
  it('run once at a time for a session, with all that has changed meanwhile, and again if they fail', async () => {
    const changes = new DeviceChanges();
    const reviews: (readonly string[] | undefined)[] = [];
    let [running, most, fails] = [0, 0, false];
    const stop = changes.follow('acme', {
      holds: (deviceId) => deviceId.startsWith('own'),
      dependsOn: (group) => group === 'acme/ours',
      reviewDevices: async (deviceIds) => {
        most = Math.max(most, (running += 1));
        await new Promise((resolve) => setTimeout(resolve, 20));
        running -= 1;
        if (fails) throw new Error('no database');
        reviews.push(deviceIds);
      },
    });
    changes.note('acme/own1');
    for (let n = 0; n < 1000; n += 1) for (const id of ['own2', 'own3', 'foreign']) changes.note(`acme/${id}`);
    changes.note('other/own4');
    changes.noteGroup('acme/others');
    await eventually(() => reviews.length === 2);
    expect(reviews).to.deep.equal([['own1'], ['own2', 'own3']]);
    changes.note('acme/own1');
    for (let n = 0; n < 1000; n += 1) changes.noteGroup('acme/ours');
    changes.note('acme/own2');
    await eventually(() => reviews.length === 4);
    expect(reviews.slice(2)).to.deep.equal([['own1'], undefined]);
    fails = true;
    changes.note('acme/own1');
    changes.note('acme/own2');
    await new Promise((resolve) => setTimeout(resolve, 50));
    fails = false;
    await eventually(() => reviews.length === 5);
    expect([reviews[4], most]).to.deep.equal([['own1', 'own2'].toReversed(), 1]);
    stop();
    changes.note(undefined);
    changes.close();
    expect(reviews).to.have.length(5);
  });
});
