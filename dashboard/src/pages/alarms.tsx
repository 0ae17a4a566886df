// The alarms of the fleet, live.
import type { Schema } from '@kellet/client';
import { useEffect } from 'preact/hooks';
import { count, plain, words } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useAction, usePages } from '../interface/data.ts';
import { fieldsOf } from '../interface/form.ts';
import { navigate } from '../interface/navigation.ts';
import {
  Age,
  ConfirmButton,
  ErrorNotice,
  Field,
  Id,
  LiveMark,
  Pager,
  Show,
  Table,
  Tag,
  Title,
} from '../interface/parts.tsx';
import { pathWith } from '../routes.ts';

/** Minimum time between reads of the list, however many alarms arrive. */
const reloadMilliseconds = 2000;

/** Lists alarms; by default the active ones. */
export function Alarms({ query }: { readonly query: URLSearchParams }) {
  const { client, live, say } = usePage();
  const status = query.get('status') ?? 'active';
  const severity = query.get('severity') ?? '';
  const pages = usePages(
    `alarms ${status} ${severity}`,
    (page_token) =>
      client.get('/api/v1/alarms', {
        params: {
          query: {
            page_size: 25,
            page_token,
            ...(status === 'any' ? {} : { status: status as Schema<'AlarmStatus'> }),
            ...(severity === '' ? {} : { severity: severity as Schema<'AlarmSeverity'> }),
          },
        },
      }),
    30,
  );
  const { reload } = pages;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = live.subscribe({ channel: 'alarms' }, () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        reload();
      }, reloadMilliseconds);
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [live, reload]);
  const change = useAction(async (alarm: Schema<'Alarm'>, verb: 'acknowledge' | 'clear') => {
    const params = { path: { alarm_id: alarm.alarm_id } };
    if (verb === 'clear') await client.post('/api/v1/alarms/{alarm_id}/clear', { params });
    else await client.post('/api/v1/alarms/{alarm_id}/acknowledge', { params });
    say(`${alarm.type}: ${verb === 'clear' ? 'cleared' : 'acknowledged'}.`);
    reload();
  });
  return (
    <main>
      <Title text="Alarms">
        <LiveMark channel="alarms" />
      </Title>
      <form
        class="filters"
        onChange={(event) => navigate(pathWith('/alarms', fieldsOf(event.currentTarget)))}
        onSubmit={(event) => event.preventDefault()}
      >
        <Field label="Status">
          <select name="status" value={status}>
            {['active', 'acknowledged', 'cleared', 'any'].map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Severity">
          <select name="severity" value={severity}>
            <option value="">any</option>
            {['critical', 'major', 'minor', 'warning', 'indeterminate'].map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </Field>
      </form>
      <ErrorNotice failure={change.failure} />
      <Show of={pages}>
        {({ alarms }) => (
          <Table
            caption="Alarms"
            columns={['Severity', 'Type', 'Device', 'Status', 'Count', 'Last', 'Actions']}
            empty={status === 'active' ? 'No active alarms.' : 'No alarms.'}
            rows={alarms.map((alarm) => ({
              key: alarm.alarm_id,
              cells: [
                <Tag state={alarm.severity} />,
                <div>
                  {words(alarm.type)}
                  {Object.keys(alarm.details ?? {}).length > 0 && (
                    <details>
                      <summary>Details</summary>
                      <code class="wrap">{plain(alarm.details)}</code>
                    </details>
                  )}
                </div>,
                <a href={`/devices/${alarm.device_id}`}>
                  <Id id={alarm.device_id} />
                </a>,
                <Tag state={alarm.status} tone={alarm.status === 'active' ? 'bad' : undefined} />,
                count(alarm.count),
                <Age time={alarm.last_at} />,
                <span class="row">
                  {alarm.status === 'active' && (
                    <button type="button" disabled={change.isRunning} onClick={() => change.run(alarm, 'acknowledge')}>
                      Acknowledge
                    </button>
                  )}
                  {alarm.status !== 'cleared' && (
                    <ConfirmButton
                      label="Clear"
                      question={`Clear ${alarm.type}? It is raised again if its rule still matches.`}
                      disabled={change.isRunning}
                      onConfirm={() => change.run(alarm, 'clear')}
                    />
                  )}
                </span>,
              ],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </main>
  );
}
