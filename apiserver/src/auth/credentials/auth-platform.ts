// What the auth service uses of the platform.
import type { Platform } from '../../config/module.ts';

/** The part of the platform that auth stands on: no broker, so that nobody is locked out while it is away. */
export type AuthPlatform = Pick<Platform, 'config' | 'database' | 'clock' | 'logger' | 'metrics' | 'paging'>;
