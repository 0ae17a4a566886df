// A request for each call of the contract that limited users may make, used to exercise every call as a limited user: a
// user of a customer, or one whose scopes are limited to device groups. A new call fails these tests until it has a request here.
import { randomUUID } from 'node:crypto';
import { unique } from './fixtures.ts';

/** The ids of what belongs to one customer, to another, or to none. */
export type Ids = Record<'customer' | 'device' | 'asset' | 'view' | 'alarm' | 'command' | 'hash', string>;

/** The time, and below the values, of the point of the device at an index. */
const timestamp = '2026-01-02T03:04:05Z';
const valuesOf = (index: number) => ({ temperature: 20 + index, humidity: 50 });
export const pointOf = (deviceId: string, index: number, time = timestamp) => ({
  ...{ device_id: deviceId, timestamp: time, numeric_values: valuesOf(index), string_values: {} },
});

/** A request of each call that names something of a customer. */
export const named: Record<string, (ids: Ids, index: number) => object> = {
  GetDevice: ({ device }) => ({ deviceId: device }),
  UpdateDevice: ({ device }) => ({ deviceId: device, name: 'renamed', updateMask: { paths: ['name'] } }),
  CreateAlarm: ({ device }) => ({ deviceId: device, type: unique('type') }),
  SendRpc: ({ device }) => ({ deviceId: device, method: 'blink' }),
  ListRpcs: ({ device }) => ({ deviceId: device }),
  GetDeviceHistory: ({ device }) => ({ deviceId: device }),
  GetAttributes: ({ device }) => ({ deviceId: device }),
  UpdateAttributes: ({ device }) => ({ deviceId: device }),
  GetMetrics: ({ device }) => ({ deviceId: device }),
  VerifyRaw: ({ device }, index) => ({ deviceId: device, timestamp, numericValues: valuesOf(index) }),
  ListProofs: ({ device }) => ({ deviceId: device }),
  GetCustomer: ({ customer }) => ({ customerId: customer }),
  GetAsset: ({ asset }) => ({ assetId: asset }),
  GetEntityView: ({ view }) => ({ entityViewId: view }),
  GetAlarm: ({ alarm }) => ({ alarmId: alarm }),
  UpdateAlarm: ({ alarm }) => ({ alarmId: alarm, severity: 1, updateMask: { paths: ['severity'] } }),
  AcknowledgeAlarm: ({ alarm }) => ({ alarmId: alarm }),
  ClearAlarm: ({ alarm }) => ({ alarmId: alarm }),
  GetRpc: ({ command }) => ({ correlationId: command }),
  CancelRpc: ({ command }) => ({ correlationId: command }),
  GetLatest: ({ device }) => ({ deviceId: device }),
  GetHistory: ({ device }) => ({ deviceId: device }),
  VerifyHash: ({ hash }) => ({ dataHashHex: hash }),
};

/** Calls that list what is the customer's. */
export const lists: Record<string, keyof Ids> = {
  ListDevices: 'device',
  ListCustomers: 'customer',
  ListAssets: 'asset',
  ListEntityViews: 'view',
  ListAlarms: 'alarm',
};

/** Calls that are not limited, with a request. */
export const unlimited: Record<string, object> = {
  Logout: {},
  LogoutSso: {},
  ValidateToken: { token: 'x' },
  ListSessions: {},
  RevokeAllSessions: {},
  ChangePassword: {},
  DeleteSession: { sessionId: randomUUID() },
  GetBundleSchema: {},
  EnrollTotp: {},
  ConfirmTotp: {},
  BeginWebauthnRegistration: {},
  FinishWebauthnRegistration: {},
  GetSecondFactors: {},
  DeleteTotp: {},
  DeleteSecurityKey: { credentialId: 'x' },
  ReplaceRecoveryCodes: {},
};
