// The latest values of a device, and charts of one of them: live, and of the past.
import { useEffect, useState } from 'preact/hooks';
import { LineChart } from '../chart/line-chart.tsx';
import { bucketSeconds, historyRanges, type Sample, withSample } from '../chart/scale.ts';
import { measure } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useLoaded, useNow } from '../interface/data.ts';
import { Age, ErrorNotice, Field, LiveMark, Show, Table } from '../interface/parts.tsx';
import { latestOf, type LatestValues, withPoint } from '../latest-values.ts';

/** Span of the live chart. */
const liveMilliseconds = 10 * 60_000;

/** Shows the values of a device. */
export function Telemetry({ deviceId }: { readonly deviceId: string }) {
  const { client, live } = usePage();
  const latest = useLoaded(`latest ${deviceId}`, () =>
    client.get('/api/v1/telemetry/{device_id}/latest', { params: { path: { device_id: deviceId } } }),
  );
  const [received, setReceived] = useState<{ values: LatestValues; samples: ReadonlyMap<string, readonly Sample[]> }>({
    values: new Map(),
    samples: new Map(),
  });
  const [chosen, choose] = useState<string>();
  useEffect(
    () =>
      live.subscribe({ channel: 'telemetry.live', device_id: deviceId }, ({ point }) => {
        setReceived(({ values, samples }) => {
          const added = new Map(samples);
          for (const [key, value] of Object.entries(point.numeric_values)) {
            added.set(key, withSample(added.get(key) ?? [], { at: Date.parse(point.timestamp), value }));
          }
          return { values: withPoint(values, point), samples: added };
        });
      }),
    [live, deviceId],
  );
  return (
    <Show of={latest}>
      {(response) => {
        const values = [...received.values].reduce<LatestValues>(
          (known, [key, { value, at }]) =>
            withPoint(known, {
              timestamp: at,
              ...(typeof value === 'number'
                ? { numeric_values: { [key]: value } }
                : { string_values: { [key]: value } }),
            }),
          latestOf(response),
        );
        const numeric = [...values].filter(([, { value }]) => typeof value === 'number').map(([key]) => key);
        const key = chosen !== undefined && numeric.includes(chosen) ? chosen : numeric.toSorted()[0];
        return (
          <>
            <section class="panel">
              <h2>
                Latest values <LiveMark channel="telemetry.live" />
              </h2>
              <Table
                caption="Latest values"
                columns={['Key', 'Value', 'Measured']}
                empty="The device has not sent anything yet."
                rows={[...values].toSorted(byKey).map(([name, { value, at }]) => ({
                  key: name,
                  cells: [
                    name,
                    <output data-key={name}>{typeof value === 'number' ? measure(value) : value}</output>,
                    <Age time={at} />,
                  ],
                }))}
              />
            </section>
            {key !== undefined && (
              <section class="panel">
                <div class="row">
                  <h2>Charts</h2>
                  <Field label="Value">
                    <select value={key} onChange={(event) => choose(event.currentTarget.value)}>
                      {numeric.toSorted().map((name) => (
                        <option key={name} value={name}>
                          {name}
                        </option>
                      ))}
                    </select>
                  </Field>
                </div>
                <LiveChart name={key} samples={received.samples.get(key) ?? []} />
                <HistoryChart deviceId={deviceId} name={key} />
              </section>
            )}
          </>
        );
      }}
    </Show>
  );
}

const byKey = ([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number => (a < b ? -1 : 1);

function LiveChart({ name, samples }: { readonly name: string; readonly samples: readonly Sample[] }) {
  const now = useNow();
  // Devices may send points of the past, or be ahead of this clock.
  const to = Math.max(now, samples.at(-1)?.at ?? 0);
  return (
    <>
      <h3>Live, last 10 minutes</h3>
      {samples.length === 0 ? (
        <p class="empty">The chart begins with the next point of the device.</p>
      ) : (
        <LineChart name={`${name}, live`} samples={samples} times={{ from: to - liveMilliseconds, to }} gap={120_000} />
      )}
    </>
  );
}

function HistoryChart({ deviceId, name }: { readonly deviceId: string; readonly name: string }) {
  const { client } = usePage();
  const [range, setRange] = useState<number>(86_400);
  const width = bucketSeconds(range);
  const history = useLoaded(`history ${deviceId} ${name} ${range}`, async () => {
    const to = Date.now();
    const from = to - range * 1000;
    const { points } = await client.get('/api/v1/telemetry/{device_id}', {
      params: {
        path: { device_id: deviceId },
        query: {
          start: new Date(from).toISOString(),
          end: new Date(to).toISOString(),
          keys: [name],
          order: 'asc',
          interval_seconds: width,
          aggregation: 'avg',
          page_size: 1000,
        },
      },
    });
    const samples = points.flatMap(({ timestamp, numeric_values: values }): Sample[] => {
      const value = values[name];
      // A bucket carries its start, which may be before the range.
      return value === undefined ? [] : [{ at: Math.max(Date.parse(timestamp), from), value }];
    });
    return { samples, times: { from, to } };
  });
  return (
    <>
      <div class="row">
        <h3>History</h3>
        <Field label="Time">
          <select value={range} onChange={(event) => setRange(Number(event.currentTarget.value))}>
            {historyRanges.map(([text, seconds]) => (
              <option key={seconds} value={seconds}>
                {text}
              </option>
            ))}
          </select>
        </Field>
        <button type="button" onClick={history.reload}>
          Refresh
        </button>
      </div>
      <ErrorNotice failure={history.failure} />
      {history.value && (
        <LineChart name={`${name}, averages`} {...history.value} gap={Math.max(width * 3000, 120_000)} />
      )}
    </>
  );
}
