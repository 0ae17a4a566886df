// The points of a device as they were anchored, each with its proof.
import type { Schema } from '@kellet/client';
import { dateTime, measure } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useAction, usePages } from '../interface/data.ts';
import { saveJson } from '../interface/download.ts';
import { ErrorNotice, Id, Pager, Show, Table, Tag } from '../interface/parts.tsx';

/** Lists the points, newest first. */
export function Points({ deviceId }: { readonly deviceId: string }) {
  const { client } = usePage();
  const pages = usePages(`points ${deviceId}`, (page_token) =>
    client.get('/api/v1/telemetry/{device_id}', {
      params: { path: { device_id: deviceId }, query: { order: 'desc', page_size: 20, page_token } },
    }),
  );
  const download = useAction(async (point: Schema<'HistoryPoint'>) => {
    const { bundle } = await client.get('/api/v1/verify/hash/{data_hash_hex}', {
      params: { path: { data_hash_hex: point.data_hash }, query: { include_bundle: true } },
    });
    if (!bundle) throw new Error('the proof is not complete yet: try again in a minute');
    saveJson(`proof-${point.data_hash.slice(0, 16)}.json`, bundle);
  });
  return (
    <section class="panel">
      <div class="row">
        <h2>Points and proofs</h2>
        <button type="button" onClick={pages.reload}>
          Refresh
        </button>
      </div>
      <p>
        A proof is a file that anyone can check without Kellet: <code>kellet-verify proof.json</code>.
      </p>
      <ErrorNotice failure={download.failure} />
      <Show of={pages}>
        {({ points }) => (
          <Table
            caption="Points"
            columns={['Time', 'Values', 'Hash', 'Proof']}
            empty="The device has not sent anything yet."
            rows={points.map((point) => ({
              key: `${point.timestamp} ${point.data_hash}`,
              cells: [
                dateTime(point.timestamp),
                <Values point={point} />,
                <Id id={point.data_hash} />,
                point.anchored ? (
                  <button
                    type="button"
                    disabled={download.isRunning}
                    aria-label={`Download the proof of ${dateTime(point.timestamp)}`}
                    onClick={() => download.run(point)}
                  >
                    Download
                  </button>
                ) : (
                  <Tag state="not anchored yet" />
                ),
              ],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </section>
  );
}

function Values({ point }: { readonly point: Schema<'HistoryPoint'> }) {
  const values = Object.entries({ ...point.numeric_values, ...point.string_values });
  return (
    <span class="values">
      {values.slice(0, 6).map(([key, value]) => (
        <span key={key}>
          {key} <strong title={String(value)}>{typeof value === 'number' ? measure(value) : value}</strong>
        </span>
      ))}
      {values.length > 6 && <span>and {values.length - 6} more</span>}
    </span>
  );
}
