// The list of devices: search, filters, one page at a time.
import type { KelletClient, Schema } from '@kellet/client';
import { usePage } from '../interface/context.ts';
import { useLoaded, usePages } from '../interface/data.ts';
import { fieldsOf } from '../interface/form.ts';
import { navigate } from '../interface/navigation.ts';
import { Age, Field, Pager, Show, Table, Tag, Title } from '../interface/parts.tsx';
import { pathWith } from '../routes.ts';

const filters = ['q', 'status', 'profile_id', 'group_id', 'tag'] as const;

/** Lists devices. The filters are in the address, so that it can be bookmarked and shared. */
export function Devices({ query }: { readonly query: URLSearchParams }) {
  const { client } = usePage();
  const given = Object.fromEntries(filters.map((name) => [name, query.get(name) ?? ''])) as Record<
    (typeof filters)[number],
    string
  >;
  const profiles = useLoaded('profiles', () => readProfiles(client));
  const groups = useLoaded('groups', () => client.get('/api/v1/device-groups', all));
  const pages = usePages(
    JSON.stringify(given),
    (page_token) => {
      const { tag, status, ...others } = given;
      const asked = Object.fromEntries(Object.entries(others).filter(([, value]) => value !== ''));
      return client.get('/api/v1/devices', {
        params: {
          query: {
            ...asked,
            page_token,
            ...(status === '' ? {} : { status: status as Schema<'DeviceStatus'> }),
            ...(tag === '' ? {} : { tag: tag.split(/[\s,]+/).filter(Boolean) }),
          },
        },
      });
    },
    30,
  );
  const nameOfProfile = new Map(profiles.value?.profiles.map((profile) => [profile.profile_id, profile.name]));
  const isFiltered = Object.values(given).some((value) => value !== '');
  const apply = (form: HTMLFormElement): void => navigate(pathWith('/devices', fieldsOf(form)));
  return (
    <main>
      <Title text="Devices" />
      <form
        class="filters"
        role="search"
        key={JSON.stringify(given)}
        onSubmit={(event) => {
          event.preventDefault();
          apply(event.currentTarget);
        }}
        onChange={(event) => {
          if (event.target instanceof HTMLSelectElement) apply(event.currentTarget);
        }}
      >
        <Field label="Name or hardware id">
          <input name="q" type="search" value={given.q} />
        </Field>
        <Field label="Status">
          <select name="status" value={given.status}>
            <option value="">any</option>
            <option value="online">online</option>
            <option value="offline">offline</option>
          </select>
        </Field>
        <Choice
          {...{ label: 'Profile', name: 'profile_id', value: given.profile_id }}
          choices={profiles.value?.profiles.map((profile) => [profile.profile_id, profile.name])}
        />
        <Choice
          {...{ label: 'Group', name: 'group_id', value: given.group_id }}
          choices={groups.value?.device_groups.map((group) => [group.group_id, group.name])}
        />
        <Field label="Tags (name=value)">
          <input name="tag" value={given.tag} spellcheck={false} />
        </Field>
        <button type="submit">Search</button>
      </form>
      <Show of={pages}>
        {({ devices }) => (
          <Table
            caption="Devices"
            columns={['Name', 'Status', 'Profile', 'Firmware', 'Last seen']}
            empty={isFiltered ? 'No device matches.' : 'There are no devices yet.'}
            rows={devices.map((device) => ({
              key: device.device_id,
              cells: [
                <a href={`/devices/${device.device_id}`}>{device.name || device.hardware_id || device.device_id}</a>,
                <Tag state={device.status} />,
                nameOfProfile.get(device.profile_id) ?? '–',
                device.firmware_version || '–',
                <Age time={device.last_seen} />,
              ],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </main>
  );
}

/** The choices are the first so many; beyond them, search and tags narrow the list. */
const mostChoices = 500;
const all = { params: { query: { page_size: mostChoices } } };

/** Reads the profiles to choose from; a page of large ones ends early. */
async function readProfiles(client: KelletClient): Promise<{ profiles: Schema<'Profile'>[] }> {
  const profiles: Schema<'Profile'>[] = [];
  for (let page_token = ''; ;) {
    const page = await client.get('/api/v1/profiles', { params: { query: { page_size: mostChoices, page_token } } });
    profiles.push(...page.profiles);
    page_token = page.next_page_token;
    if (page_token === '' || profiles.length >= mostChoices) return { profiles };
  }
}

function Choice({
  label,
  name,
  value,
  choices = [],
}: {
  readonly label: string;
  readonly name: string;
  readonly value: string;
  readonly choices: readonly (readonly [id: string, name: string])[] | undefined;
}) {
  const isListed = value === '' || choices.some(([id]) => id === value);
  return (
    <Field label={label}>
      <select name={name} value={value}>
        <option value="">any</option>
        {!isListed && <option value={value}>{value}</option>}
        {choices.map(([id, text]) => (
          <option key={id} value={id}>
            {text}
          </option>
        ))}
      </select>
    </Field>
  );
}
