import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import type { Transaction } from '../platform/database/database.ts';
import { KelletError } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { RefusalError } from './applier.ts';
import { cancelIntent, cancelOverdueIntents, intentState, openIntent, takeUpIntent } from './intents.ts';

describe('intents', () => {
  let test: TestDatabase;
  before(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
  });
  after(() => test.drop());

  const inAcme = <T>(work: (tx: Transaction) => Promise<T>) => test.database.tenant('acme', work);
  const open = async (milliseconds = 60_000) => {
    const intent = {
      tenantId: 'acme',
      intentId: newId(),
      kind: 'DeviceProfile',
      namespace: 'kellet-acme',
      name: newId(),
    } as const;
    await inAcme((tx) => openIntent(tx, intent, milliseconds));
    return intent;
  };
  const metaOf = (intentId: string, tenantId = 'acme') => create(ObjectMetaSchema, { tenantId, intentId });
  const takeUp = (intentId: string) =>
    inAcme((tx) => takeUpIntent(tx, metaOf(intentId))).then(
      () => 'activated',
      (error: unknown) => (error instanceof RefusalError ? error.reason : String(error)),
    );
  const cancel = (intentId: string) => inAcme((tx) => cancelIntent(tx, 'acme', intentId));
  const state = (intentId: string) => inAcme((tx) => intentState(tx, 'acme', intentId));

  it('stay active once activated', async () => {
    const { intentId } = await open();
    expect(await state(intentId)).to.equal('pending');
    expect(await takeUp(intentId)).to.equal('activated');
    expect(await takeUp(intentId)).to.equal('activated');
    expect(await cancel(intentId)).to.equal('active');
    expect(await state(intentId)).to.equal('active');
  });

  it('cannot be activated once cancelled, even before their deadline', async () => {
    const { intentId } = await open();
    expect(await cancel(intentId)).to.equal('cancelled');
    expect(await takeUp(intentId)).to.equal('IntentCancelled');
    expect(await cancel(intentId)).to.equal('cancelled');
  });

  it('cannot be activated after their deadline, even if not cancelled yet', async () => {
    const { intentId } = await open(0);
    expect(await takeUp(intentId)).to.equal('IntentCancelled');
    expect(await state(intentId)).to.equal('pending');
  });

  it('are not activated by a transaction that fails', async () => {
    const { intentId } = await open();
    await inAcme(async (tx) => {
      await takeUpIntent(tx, metaOf(intentId));
      throw new Error('the working copy could not be written');
    }).catch(() => undefined);
    expect(await cancel(intentId)).to.equal('cancelled');
  });

  it('belong to their tenant', async () => {
    const { intentId } = await open();
    await test.database.tenant('other', (tx) => takeUpIntent(tx, metaOf(intentId, 'other')));
    expect(await state(intentId)).to.equal('pending');
  });

  it('are either activated or cancelled if both happen concurrently', async () => {
    const outcomes = await Promise.all(
      Array.from({ length: 60 }, async (_, index) => {
        const { intentId } = await open();
        const calls = [() => takeUp(intentId), () => cancel(intentId)];
        if (index % 2) calls.reverse();
        const responses = await Promise.all(calls.map((call) => call()));
        return `${responses.toSorted().join(' ')} → ${await state(intentId)}`;
      }),
    );
    for (const outcome of outcomes) {
      expect(outcome).to.be.oneOf(['activated active → active', 'IntentCancelled cancelled → cancelled']);
    }
  });

  it('are cancelled by the sweep when overdue, and returned by it for two minutes', async () => {
    const [overdue, current] = [await open(-10_000), await open()];
    const sweep = () => test.database.system((tx) => cancelOverdueIntents(tx));
    const idsOf = (found: { intentId: string }[]) => found.map((intent) => intent.intentId);
    const found = await sweep();
    expect(idsOf(found)).to.include(overdue.intentId).and.not.include(current.intentId);
    expect(found.find((intent) => intent.intentId === overdue.intentId)).to.deep.equal(overdue);
    expect(await state(overdue.intentId)).to.equal('cancelled');
    expect(idsOf(await sweep())).to.include(overdue.intentId);
    await inAcme((tx) => tx.query(`UPDATE resource_intents SET settled_at = now() - interval '3 minutes'`));
    expect(await sweep()).to.deep.equal([]);
  });

  it('are deleted a week after they were settled', async () => {
    const settled = [await open(), await open()];
    await takeUp(settled[0]!.intentId);
    await cancel(settled[1]!.intentId);
    const current = await open();
    const states = () => Promise.all([...settled, current].map(({ intentId }) => state(intentId)));
    const sweepAfter = async (days: number) => {
      await inAcme((tx) => tx.query(`UPDATE resource_intents SET settled_at = now() - $1 * interval '1 day'`, [days]));
      await test.database.system((tx) => cancelOverdueIntents(tx));
    };
    await sweepAfter(6);
    expect(await states()).to.deep.equal(['active', 'cancelled', 'pending']);
    await sweepAfter(8);
    expect(await states()).to.deep.equal([undefined, undefined, 'pending']);
  });

  it('reject a COMMIT after their deadline', async () => {
    const spend: Record<string, (tx: Transaction) => Promise<unknown>> = {
      'one long statement': (tx) => tx.query('SELECT pg_sleep(2)'),
      'many short statements': async (tx) => {
        for (let count = 0; count < 20; count += 1) await tx.query('SELECT pg_sleep(0.05)');
      },
      'an idle transaction': () => new Promise((resolve) => setTimeout(resolve, 1500)),
    };
    for (const [how, work] of Object.entries(spend)) {
      const { intentId } = await open(500);
      const begun = Date.now();
      const outcome = await inAcme(async (tx) => {
        await takeUpIntent(tx, metaOf(intentId));
        await work(tx);
      }).then(
        () => 'committed',
        (error: unknown) => (error instanceof KelletError ? error.code : String(error)),
      );
      expect(outcome, how).to.equal('UNAVAILABLE');
      expect(Date.now() - begun, how).to.be.below(1900);
      expect(await state(intentId), how).to.equal('pending');
    }
  });

  it('are cancelled as soon as the transaction that holds them is terminated', async () => {
    const { intentId } = await open(500);
    // An idle open transaction, as after a lost connection that the server has not detected.
    const holding = inAcme(async (tx) => {
      await takeUpIntent(tx, metaOf(intentId));
      await new Promise((resolve) => setTimeout(resolve, 3000));
    }).catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(await cancel(intentId)).to.equal('cancelled');
    await holding;
    expect(await state(intentId)).to.equal('cancelled');
  });

  it('cannot be cancelled while a transaction holds them: UNAVAILABLE', async () => {
    const { intentId } = await open(10_000);
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    const holding = inAcme(async (tx) => {
      await takeUpIntent(tx, metaOf(intentId));
      await held;
    });
    await new Promise((resolve) => setTimeout(resolve, 100));
    const refused = await cancel(intentId).catch((error: unknown) => (error as KelletError).code);
    expect(refused).to.equal('UNAVAILABLE');
    release();
    await holding;
    expect(await cancel(intentId)).to.equal('active');
  });
});
