// One device: what it is, what it measures, and what was done with it.
import { usePage } from '../interface/context.ts';
import { useLoaded } from '../interface/data.ts';
import { navigate } from '../interface/navigation.ts';
import { Age, Show, Tag, Title } from '../interface/parts.tsx';
import { Attributes } from './device-attributes.tsx';
import { Commands } from './device-commands.tsx';
import { DeviceEvents } from './device-events.tsx';
import { Points } from './device-points.tsx';
import { Telemetry } from './device-telemetry.tsx';

const tabs = ['telemetry', 'points', 'attributes', 'commands', 'events'] as const;
type Tab = (typeof tabs)[number];

/** Shows a device. */
export function Device({ id, query }: { readonly id: string; readonly query: URLSearchParams }) {
  const { client } = usePage();
  const device = useLoaded(
    `device ${id}`,
    () => client.get('/api/v1/devices/{device_id}', { params: { path: { device_id: id } } }),
    30,
  );
  const tab: Tab = tabs.find((name) => name === query.get('tab')) ?? 'telemetry';
  const { name, hardware_id: hardwareId } = device.value ?? {};
  return (
    <main>
      <p class="trail">
        <a href="/devices">Devices</a>
      </p>
      <Title text={name || hardwareId || 'Device'}>{device.value && <Tag state={device.value.status} />}</Title>
      <Show of={device}>
        {(value) => (
          <>
            <dl class="facts">
              <Fact name="Device id">
                <code>{value.device_id}</code>
              </Fact>
              <Fact name="Hardware id">{value.hardware_id}</Fact>
              <Fact name="Last seen">
                <Age time={value.last_seen} />
              </Fact>
              <Fact name="Firmware">{value.firmware_version || '–'}</Fact>
              {value.software_version !== '' && <Fact name="Software">{value.software_version}</Fact>}
              {value.gateway_device_id !== '' && (
                <Fact name="Gateway">
                  <a href={`/devices/${value.gateway_device_id}`}>{value.gateway_device_id}</a>
                </Fact>
              )}
              {Object.keys(value.effective_tags).length > 0 && (
                <Fact name="Tags">
                  {Object.entries(value.effective_tags).map(([key, text]) => (
                    <span key={key} class="tag">
                      {key}={String(text)}
                    </span>
                  ))}
                </Fact>
              )}
            </dl>
            <nav class="tabs" aria-label="Parts of the device">
              {tabs.map((part) => (
                <a
                  key={part}
                  href={`/devices/${encodeURIComponent(id)}?tab=${part}`}
                  aria-current={part === tab ? 'page' : undefined}
                  onClick={(event) => {
                    event.preventDefault();
                    // Going back leaves the device, not its tabs one by one.
                    navigate(`/devices/${encodeURIComponent(id)}?tab=${part}`, { replace: true });
                  }}
                >
                  {part}
                </a>
              ))}
            </nav>
            {tab === 'telemetry' && <Telemetry deviceId={id} />}
            {tab === 'points' && <Points deviceId={id} />}
            {tab === 'attributes' && <Attributes deviceId={id} />}
            {tab === 'commands' && <Commands deviceId={id} />}
            {tab === 'events' && <DeviceEvents deviceId={id} />}
          </>
        )}
      </Show>
    </main>
  );
}

function Fact({ name, children }: { readonly name: string; readonly children: preact.ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
