// Dependencies of the handlers of customers, assets and entity views.
import type { Platform } from '../../config/module.ts';
import type { Transaction } from '../../platform/database/database.ts';

/** Reports whether users belong to a customer, which therefore must stay. */
export type CustomerHasUsers = (tx: Transaction, tenantId: string, customerId: string) => Promise<boolean>;

/** Locks a device against deletion until the transaction ends. Reports whether the tenant has it. */
export type HoldDevice = (tx: Transaction, tenantId: string, deviceId: string) => Promise<boolean>;

/** The dependencies. */
export type EntityParts = Pick<Platform, 'database' | 'paging'> & {
  readonly customerHasUsers: CustomerHasUsers;
  readonly holdDevice: HoldDevice;
};
