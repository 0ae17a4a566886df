// The state of the fleet at a glance.
import type { ComponentChildren } from 'preact';
import { count } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { type Loaded, useLoaded } from '../interface/data.ts';
import { Age, Id, Show, Tag, Title } from '../interface/parts.tsx';
import { ProgressBar } from '../rollouts/progress-bar.tsx';

const shown = 10;

/** Shows the devices, what is under way, what is wrong, and the latest proof. */
export function Overview() {
  const { client } = usePage();
  const devices = useLoaded('statistics', () => client.get('/api/v1/devices/statistics'), 30);
  const rollouts = useLoaded(
    'rollouts',
    async () => {
      // One page of each: only a few rollouts run at a time, whatever the size of the fleet.
      const read = (status: 'active' | 'paused' | 'rolling_back') =>
        client.get('/api/v1/ota/rollouts', { params: { query: { status, page_size: shown } } });
      const lists = await Promise.all([read('paused'), read('rolling_back'), read('active')]);
      return {
        rollouts: lists.flatMap((list) => list.rollouts),
        hasMore: lists.some((list) => list.next_page_token !== ''),
      };
    },
    30,
  );
  const alarms = useLoaded(
    'alarms',
    () => client.get('/api/v1/alarms', { params: { query: { status: 'active', page_size: shown } } }),
    30,
  );
  const batches = useLoaded(
    'batches',
    () => client.get('/api/v1/anchors', { params: { query: { page_size: 1 } } }),
    30,
  );
  return (
    <main>
      <Title text="Overview" />
      <div class="cards">
        <Card title="Devices" link="/devices" of={devices}>
          {({ total, online, offline, firmware_versions: versions }) => (
            <>
              <p class="figure">{count(total)}</p>
              <ul class="plain-list">
                <li>
                  <a href="/devices?status=online">
                    <Tag state="online" /> {count(online)}
                  </a>
                </li>
                <li>
                  <a href="/devices?status=offline">
                    <Tag state="offline" /> {count(offline)}
                  </a>
                </li>
              </ul>
              {versions.length > 0 && (
                <details>
                  <summary>Firmware versions</summary>
                  <ul class="plain-list">
                    {versions.slice(0, shown).map((entry) => (
                      <li key={entry.version}>
                        {entry.version === '' ? 'not reported' : entry.version}: {count(entry.count)}
                      </li>
                    ))}
                  </ul>
                </details>
              )}
            </>
          )}
        </Card>
        <Card title="Active alarms" link="/alarms" of={alarms}>
          {({ alarms: active, next_page_token: more }) => (
            <>
              <p class="figure">{more === '' ? active.length : `more than ${active.length}`}</p>
              <ul class="plain-list">
                {active.slice(0, 5).map((alarm) => (
                  <li key={alarm.alarm_id}>
                    <Tag state={alarm.severity} /> <a href={`/devices/${alarm.device_id}`}>{alarm.type}</a>{' '}
                    <small>
                      <Age time={alarm.last_at} />
                    </small>
                  </li>
                ))}
              </ul>
            </>
          )}
        </Card>
        <Card title="Latest anchor batch" link="/anchors" of={batches}>
          {({ batches: [batch] }) =>
            batch ? (
              <>
                <p class="figure">
                  {count(batch.count)} <small>points</small>
                </p>
                <p>
                  <Tag state={batch.status} />{' '}
                  <small>
                    <Age time={batch.confirmed_at ?? batch.created_at} />
                  </small>
                </p>
                {batch.txid !== '' && (
                  <p>
                    Transaction <Id id={batch.txid} />
                  </p>
                )}
              </>
            ) : (
              <p class="empty">No point has been anchored yet.</p>
            )
          }
        </Card>
      </div>
      <section class="panel">
        <h2>
          <a href="/rollouts">Rollouts under way</a>
        </h2>
        <Show of={rollouts}>
          {({ rollouts: underWay, hasMore }) =>
            underWay.length === 0 ? (
              <p class="empty">None.</p>
            ) : (
              <>
                <ul class="plain-list">
                  {underWay.map((rollout) => (
                    <li key={rollout.rollout_id} class="rollout">
                      <a href={`/rollouts/${rollout.rollout_id}`}>{rollout.name || rollout.rollout_id}</a>{' '}
                      <Tag state={rollout.status} />
                      <ProgressBar rollout={rollout} />
                    </li>
                  ))}
                </ul>
                {hasMore && <a href="/rollouts">All of them</a>}
              </>
            )
          }
        </Show>
      </section>
    </main>
  );
}

function Card<Value>({
  title,
  link,
  of,
  children,
}: {
  readonly title: string;
  readonly link: string;
  readonly of: Loaded<Value>;
  readonly children: (value: Value) => ComponentChildren;
}) {
  return (
    <section class="panel">
      <h2>
        <a href={link}>{title}</a>
      </h2>
      <Show of={of}>{children}</Show>
    </section>
  );
}
