// One rollout: its stages, its counts, why it is paused, and what an operator can do to it.
import type { Schema } from '@kellet/client';
import { useEffect, useState } from 'preact/hooks';
import { count, duration, percent, words } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useAction, useLiveState, useLoaded, usePages } from '../interface/data.ts';
import {
  Age,
  ConfirmButton,
  ErrorNotice,
  Field,
  LiveMark,
  Pager,
  Show,
  Table,
  Tag,
  Title,
} from '../interface/parts.tsx';
import { ProgressBar } from '../rollouts/progress-bar.tsx';
import { countsOf, pauseText, stagesOf, type Verb, verbsOf } from '../rollouts/rollout-view.ts';

type Rollout = Schema<'Rollout'>;

const verbs: Readonly<
  Record<Verb, { readonly label: string; readonly tone?: 'danger' | 'primary'; readonly question: string }>
> = {
  pause: { label: 'Pause', question: 'Pause? No further devices are sent the update; those that have it finish it.' },
  resume: { label: 'Resume', tone: 'primary', question: 'Resume? Further devices are sent the update.' },
  approve: { label: 'Approve next step', tone: 'primary', question: 'Approve the next step? It begins when due.' },
  rollback: {
    label: 'Roll back',
    tone: 'danger',
    question: 'Roll back? Every device that was sent the update gets the rollback package. This cannot be undone.',
  },
  cancel: {
    label: 'Cancel rollout',
    tone: 'danger',
    question: 'Cancel? The rollout ends; updated devices keep the new version. This cannot be undone.',
  },
};

/** Shows a rollout. */
export function RolloutPage({ id }: { readonly id: string }) {
  const { client, live, session, say } = usePage();
  const path = { rollout_id: id };
  const rollout = useLoaded(
    `rollout ${id}`,
    () => client.get('/api/v1/ota/rollouts/{rollout_id}', { params: { path } }),
    // Requests count towards the limit of the tenant, so few are made while the live feed is connected.
    useLiveState('rollouts') === 'live' ? 60 : 5,
  );
  const { set } = rollout;
  useEffect(
    () => live.subscribe({ channel: 'rollouts', rollout_id: id }, ({ rollout: changed }) => set(changed)),
    [live, id, set],
  );
  const act = useAction(async (verb: Verb) => {
    rollout.set(await call[verb]());
    say(`${verbs[verb].label}: done.`);
  });
  const call: Readonly<Record<Verb, () => Promise<Rollout>>> = {
    pause: () => client.post('/api/v1/ota/rollouts/{rollout_id}/pause', { params: { path } }),
    resume: () => client.post('/api/v1/ota/rollouts/{rollout_id}/resume', { params: { path }, body: {} }),
    approve: () => client.post('/api/v1/ota/rollouts/{rollout_id}/approve', { params: { path } }),
    rollback: () => client.post('/api/v1/ota/rollouts/{rollout_id}/rollback', { params: { path } }),
    cancel: () => client.post('/api/v1/ota/rollouts/{rollout_id}/cancel', { params: { path } }),
  };
  return (
    <main>
      <p class="trail">
        <a href="/rollouts">Rollouts</a>
      </p>
      <Title text={rollout.value?.name || 'Rollout'}>
        {rollout.value && <Tag state={rollout.value.status} />}
        {rollout.value?.outcome && <Tag state={rollout.value.outcome} />}
        <LiveMark channel="rollouts" />
      </Title>
      <ErrorNotice failure={act.failure} />
      <Show of={rollout}>
        {(value) => (
          <>
            {value.pause_reasons.length > 0 && (
              <p class="notice warn" role="status">
                Paused: {pauseText(value.pause_reasons)}.
              </p>
            )}
            {value.message !== '' && <p>{value.message}</p>}
            {session.holds('ota:write') && (
              <div class="row">
                {verbsOf(value).map((verb) => (
                  <ConfirmButton key={verb} {...verbs[verb]} disabled={act.isRunning} onConfirm={() => act.run(verb)} />
                ))}
              </div>
            )}
            <section class="panel">
              <h2>Progress</h2>
              <ProgressBar rollout={value} />
              <Stages rollout={value} />
              <dl class="facts">
                {(
                  ['eligible', 'scheduled', 'sent', 'succeeded', 'failed', 'timed_out', 'skipped', 'removed'] as const
                ).map((name) => (
                  <div key={name}>
                    <dt>{words(name)}</dt>
                    <dd>{count(countsOf(value)[name])}</dd>
                  </div>
                ))}
                <div>
                  <dt>failed of scheduled</dt>
                  <dd>
                    {percent(value.failure_percent)} <small>(pauses above {value.failure_threshold_percent} %)</small>
                  </dd>
                </div>
              </dl>
            </section>
            <RolloutDevices id={id} />
          </>
        )}
      </Show>
    </main>
  );
}

function Stages({ rollout }: { readonly rollout: Rollout }) {
  return (
    <ol class="stages" aria-label="Stages">
      {stagesOf(rollout).map((stage, index) => (
        <li key={index} class={stage.state} aria-current={stage.state === 'current' ? 'step' : undefined}>
          <strong>{stage.percent} %</strong>{' '}
          <small>
            {index === 0 ? 'canary' : `step ${index}`}
            {stage.soakSeconds > 0 && `, after ${duration(stage.soakSeconds)}`}
            {stage.approval && ', needs approval'}
          </small>
        </li>
      ))}
    </ol>
  );
}

const states: readonly Schema<'RolloutDeviceState'>[] = [
  'scheduled',
  'sent',
  'downloading',
  'successful',
  'failure',
  'timed_out',
  'skipped',
  'rolled_back',
];

function RolloutDevices({ id }: { readonly id: string }) {
  const { client } = usePage();
  const [state, setState] = useState<Schema<'RolloutDeviceState'> | ''>('');
  const pages = usePages(
    `devices of ${id} ${state}`,
    (page_token) =>
      client.get('/api/v1/ota/rollouts/{rollout_id}/devices', {
        params: {
          path: { rollout_id: id },
          query: { page_size: 25, page_token, ...(state === '' ? {} : { state }) },
        },
      }),
    15,
  );
  return (
    <section class="panel">
      <div class="row">
        <h2>Devices</h2>
        <Field label="State">
          <select value={state} onChange={(event) => setState(event.currentTarget.value as typeof state)}>
            <option value="">any</option>
            {states.map((name) => (
              <option key={name} value={name}>
                {words(name)}
              </option>
            ))}
          </select>
        </Field>
      </div>
      <Show of={pages}>
        {({ devices }) => (
          <Table
            caption="Devices of the rollout"
            columns={['Device', 'State', 'Attempts', 'Firmware', 'Error', 'Changed']}
            empty="None."
            rows={devices.map((device) => ({
              key: device.device_id,
              cells: [
                <a href={`/devices/${device.device_id}`}>
                  <code>{device.device_id}</code>
                </a>,
                <Tag state={device.state} />,
                device.attempts,
                device.firmware_version || '–',
                device.error || '–',
                <Age time={device.updated_at} />,
              ],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </section>
  );
}
