// The cold storage of a process: the store of the configuration and what reads it.
import { s3SettingsOf } from '../../config/config.ts';
import type { Platform } from '../../config/module.ts';
import type { ObjectStore } from '../../platform/object-store/object-store.ts';
import { openStore } from '../../platform/object-store/open-store.ts';
import { ColdFiles } from './cold-files.ts';

/** The store, if KELLET_COLD_URL is set, and the files in it. */
export interface ColdStorage {
  readonly store: ObjectStore | undefined;
  readonly files: ColdFiles;
}

/** Opens the cold storage of the configuration. The caller closes the store. */
export function openColdStorage(platform: Pick<Platform, 'config' | 'logger' | 'metrics'>): ColdStorage {
  const { config } = platform;
  const store = config.coldUrl === '' ? undefined : openStore(config.coldUrl, s3SettingsOf(config));
  return { store, files: new ColdFiles(store, platform) };
}
