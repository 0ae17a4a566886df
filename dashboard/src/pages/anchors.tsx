// Anchor batches and their transactions, and the proof of a hash.
import type { Schema } from '@kellet/client';
import { useState } from 'preact/hooks';
import { count, dateTime, words } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useAction, usePages } from '../interface/data.ts';
import { saveJson } from '../interface/download.ts';
import { fieldsOf } from '../interface/form.ts';
import { navigate } from '../interface/navigation.ts';
import { Age, ErrorNotice, Field, Id, Pager, Show, Table, Tag, Title } from '../interface/parts.tsx';
import { pathWith } from '../routes.ts';

const statuses: readonly Schema<'AnchorBatchStatus'>[] = ['open', 'sealed', 'submitted', 'seen', 'confirmed', 'failed'];

/** Lists the batches, newest first. */
export function Anchors({ query }: { readonly query: URLSearchParams }) {
  const { client } = usePage();
  const status = query.get('status') ?? '';
  const pages = usePages(
    `batches ${status}`,
    (page_token) =>
      client.get('/api/v1/anchors', {
        params: {
          query: {
            page_size: 25,
            page_token,
            ...(status === '' ? {} : { status: status as Schema<'AnchorBatchStatus'> }),
          },
        },
      }),
    15,
  );
  return (
    <main>
      <Title text="Anchors" />
      <VerifyHash />
      <section class="panel">
        <div class="row">
          <h2>Batches</h2>
          <Field label="Status">
            <select
              value={status}
              onChange={(event) => navigate(pathWith('/anchors', { status: event.currentTarget.value }))}
            >
              <option value="">any</option>
              {statuses.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </Field>
        </div>
        <Show of={pages}>
          {({ batches }) => (
            <Table
              caption="Anchor batches"
              columns={['Created', 'Status', 'Points', 'Mode', 'Transaction', 'Block', 'Confirmations']}
              empty="No batches."
              rows={batches.map((batch) => ({
                key: batch.batch_id,
                cells: [
                  <Age time={batch.created_at} />,
                  <>
                    <Tag state={batch.status} /> {batch.error !== '' && <small>{batch.error}</small>}
                  </>,
                  count(batch.count),
                  words(batch.anchor_mode),
                  batch.txid === '' ? '–' : <Id id={batch.txid} />,
                  batch.block_height === 0 ? '–' : batch.block_height,
                  batch.confirmations === 0 ? '–' : count(batch.confirmations),
                ],
              }))}
            />
          )}
        </Show>
        <Pager pages={pages} />
      </section>
    </main>
  );
}

function VerifyHash() {
  const { client } = usePage();
  const [found, setFound] = useState<Schema<'VerifyHashResponse'>>();
  const verify = useAction(async (hash: string) => {
    setFound(undefined);
    const path = { data_hash_hex: hash };
    setFound(
      await client.get('/api/v1/verify/hash/{data_hash_hex}', { params: { path, query: { include_bundle: true } } }),
    );
  });
  return (
    <section class="panel">
      <h2>Verify a hash</h2>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          verify.run((fieldsOf(event.currentTarget).hash ?? '').trim().toLowerCase());
        }}
      >
        <Field label="Hash of a point (64 hex digits)">
          <input
            class="hash"
            name="hash"
            required
            pattern="\s*[0-9a-fA-F]{64}\s*"
            title="64 hex digits"
            spellcheck={false}
            autocomplete="off"
          />
        </Field>
        <button type="submit" class="primary" disabled={verify.isRunning}>
          Verify
        </button>
      </form>
      <ErrorNotice failure={verify.failure} />
      {found && (
        <div role="status">
          <p class="notice good">
            {found.block_height > 0
              ? `Anchored in block ${found.block_height}, confirmed ${dateTime(found.confirmed_at)}.`
              : 'Recorded, and not in a block yet.'}
          </p>
          <dl class="facts">
            <div>
              <dt>Device</dt>
              <dd>
                <a href={`/devices/${found.device_id}`}>{found.device_id}</a>
              </dd>
            </div>
            <div>
              <dt>Transaction</dt>
              <dd>
                <code>{found.txid || '–'}</code>
              </dd>
            </div>
            <div>
              <dt>Merkle root</dt>
              <dd>
                <code>{found.merkle_root}</code>
              </dd>
            </div>
            <div>
              <dt>Leaf</dt>
              <dd>
                {found.leaf_index} of {count(found.count)}
              </dd>
            </div>
          </dl>
          {found.bundle && (
            <button type="button" onClick={() => saveJson(`proof-${found.data_hash.slice(0, 16)}.json`, found.bundle)}>
              Download the proof
            </button>
          )}
        </div>
      )}
    </section>
  );
}
