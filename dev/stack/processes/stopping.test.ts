import { expect } from 'chai';
import { startOrStop, Stopping } from './stopping.ts';

/** Returns a list of stopped components and a function that creates components by name. */
function recorder() {
  const stopped: string[] = [];
  return { stopped, step: (name: string) => async () => void stopped.push(name) };
}

describe('stack: stopping', () => {
  it('stops once, in reverse order', async () => {
    const { stopped, step } = recorder();
    const stopping = new Stopping();
    for (const name of ['a', 'b', 'c']) await stopping.add(step(name));
    await Promise.all([stopping.stop(), stopping.stop()]);
    await stopping.stop();
    expect(stopped).to.deep.equal(['c', 'b', 'a']);
  });

  it('stops late additions immediately', async () => {
    const { stopped, step } = recorder();
    const stopping = new Stopping();
    await stopping.stop();
    await stopping.add(step('late'));
    expect(stopped).to.deep.equal(['late']);
  });

  it('happens after a failed start, before the failure is reported', async () => {
    const { stopped, step } = recorder();
    const stopping = new Stopping();
    const start = async () => {
      await stopping.add(step('half'));
      throw new Error('broken');
    };
    const error = await startOrStop(stopping, start, undefined).catch((reason: Error) => reason.message);
    expect(error).to.equal('broken');
    expect(stopped).to.deep.equal(['half']);
  });

  it('happens after an abort, without waiting for the start', async () => {
    const { stopped, step } = recorder();
    const stopping = new Stopping();
    const controller = new AbortController();
    const start = async () => {
      await stopping.add(step('half'));
      controller.abort(new Error('interrupted'));
      await new Promise(() => undefined);
    };
    const error = await startOrStop(stopping, start, controller.signal).catch((reason: Error) => reason.message);
    expect(error).to.equal('interrupted');
    expect(stopped).to.deep.equal(['half']);
  });

  it('does not happen after a successful start', async () => {
    const { stopped, step } = recorder();
    const stopping = new Stopping();
    await startOrStop(stopping, () => stopping.add(step('whole')), new AbortController().signal);
    expect(stopped).to.deep.equal([]);
  });
});
