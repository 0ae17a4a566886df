// The columns of files of devices: what a line says about a device, and the line of a device.
import type { JsonObject, JsonValue } from '@bufbuild/protobuf';
import { invalidArgument, notFound } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { freeJsonField, textField } from '../../platform/requests/fields.ts';
import { checkTags } from '../devices/device-tags.ts';
import { maximumGroupsOfDevice } from '../devices/group-members.ts';
import { csvLine } from './csv-file.ts';
import { parseJson } from './lines.ts';

/** The columns that an import reads, and those that only an export writes. */
const readColumns = ['name', 'hardware_id', 'profile_id', 'profile_name', 'tags', 'metadata', 'group_ids'] as const;
const writtenColumns = ['device_id', 'status', 'last_seen', 'firmware_version'] as const;

/** The columns of an export. */
const exportedColumns = [...readColumns, ...writtenColumns] as const;

/** The columns that a file may have. */
export const knownColumns: ReadonlySet<string> = new Set(exportedColumns);

const maximumMetadataBytes = 16_384;

/** What a line says about a device; undefined means nothing. */
export interface DeviceLine {
  readonly hardwareId: string;
  readonly name: string | undefined;
  /** Empty means none. */
  readonly profileId: string | undefined;
  readonly profileName: string | undefined;
  readonly tags: Readonly<Record<string, string>> | undefined;
  /** null means none. */
  readonly metadata: JsonObject | null | undefined;
  readonly groupIds: readonly string[] | undefined;
}

/** Reads the values of a line. Throws INVALID_ARGUMENT, or NOT_FOUND for what is no id of a group, naming the column. */
export function readDeviceLine(values: ReadonlyMap<string, unknown>): DeviceLine {
  const text = (name: (typeof readColumns)[number], maximum: number): string | undefined => {
    const value = values.get(name);
    if (value === undefined || value === null) return undefined;
    if (typeof value !== 'string') throw invalidArgument(`${name} must be a text`);
    return textField(name, value, { maximum });
  };
  const hardwareId = textField('hardware_id', text('hardware_id', 256) ?? '', { minimum: 1, maximum: 256 });
  const tags = structured(values, 'tags');
  const metadata = structured(values, 'metadata');
  const groupIds = structured(values, 'group_ids');
  return {
    hardwareId,
    name: text('name', 256) || undefined,
    profileId: text('profile_id', 64)?.toLowerCase(),
    profileName: text('profile_name', 1024),
    tags: tags === undefined ? undefined : tagsOf(tags),
    metadata: metadata === undefined ? undefined : metadataOf(metadata),
    groupIds: groupIds === undefined ? undefined : groupsOf(groupIds),
  };
}

/** Returns a value that CSV holds as JSON, null for an empty cell; undefined if the line does not have it. */
function structured(values: ReadonlyMap<string, unknown>, name: (typeof readColumns)[number]): JsonValue | undefined {
  const value = values.get(name) as JsonValue | undefined;
  if (typeof value !== 'string') return value;
  if (value.trim() === '') return null;
  return parseJson(name, value);
}

const isObject = (value: JsonValue): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function tagsOf(value: JsonValue): Record<string, string> {
  if (value === null) return {};
  if (!isObject(value) || Object.values(value).some((tag) => typeof tag !== 'string')) {
    throw invalidArgument('tags must be a JSON object of texts');
  }
  checkTags(value as Record<string, string>);
  return value as Record<string, string>;
}

function metadataOf(value: JsonValue): JsonObject | null {
  if (value === null) return null;
  if (!isObject(value)) throw invalidArgument('metadata must be a JSON object');
  freeJsonField('metadata', value, maximumMetadataBytes);
  return value;
}

function groupsOf(value: JsonValue): string[] {
  if (value === null) return [];
  if (!Array.isArray(value) || value.some((id) => typeof id !== 'string')) {
    throw invalidArgument('group_ids must be a JSON array of ids');
  }
  if (value.some((id) => !isId(id as string))) throw notFound('group_ids');
  if (value.length > maximumGroupsOfDevice) {
    throw invalidArgument(`group_ids must have at most ${maximumGroupsOfDevice} entries`);
  }
  return [...new Set(value.map((id) => (id as string).toLowerCase()))];
}

/** A device as exported; absent values are empty. */
export interface ExportedDevice {
  readonly name: string;
  readonly hardware_id: string;
  readonly profile_id: string;
  readonly profile_name: string;
  readonly tags: Readonly<Record<string, string>>;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly group_ids: readonly string[];
  readonly device_id: string;
  readonly status: string;
  /** RFC 3339. */
  readonly last_seen: string;
  readonly firmware_version: string;
}

/** A format of files. */
export interface FileFormat {
  readonly contentType: string;
  readonly header: string;
  readonly line: (device: ExportedDevice) => string;
}

/** The formats by name. */
export const fileFormats: Readonly<Record<'csv' | 'ndjson', FileFormat>> = {
  csv: {
    contentType: 'text/csv; charset=utf-8; header=present',
    header: csvLine(exportedColumns),
    line: (device) => csvLine(exportedColumns.map((name) => cellOf(device[name]))),
  },
  ndjson: {
    contentType: 'application/x-ndjson',
    header: '',
    line: (device) => `${JSON.stringify(device)}\n`,
  },
};

const cellOf = (value: ExportedDevice[keyof ExportedDevice]): string =>
  typeof value === 'string' ? value : JSON.stringify(value);
