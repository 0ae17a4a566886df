// The parts of the platform that the auth service uses.
import type { Platform } from '../../config/module.ts';

/**
 * The parts of the platform that auth uses: without the broker, so that sign-in works while the broker is unavailable.
 */
export type AuthPlatform = Pick<Platform, 'config' | 'database' | 'clock' | 'logger' | 'metrics' | 'paging' | 'audit'>;
