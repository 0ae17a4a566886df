// The clients that may see the alarms of the same devices of a tenant. Which of its alarms they see is asked once for all of them and
// for all alarms that have come meanwhile: a tenant may have 2,000 clients and hundreds of alarms a second.
import { setImmediate } from 'node:timers/promises';
import type { FairSlots } from '../platform/concurrency/fair-slots.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { isLimited, type Visibility, type VisibleDevices } from '../platform/visibility.ts';

/** A raised or cleared alarm. */
export interface FedAlarm {
  readonly alarmId: string;
  /** For clients. */
  readonly message: string;
  /** Empty if it has none. */
  readonly deviceId: string;
}

/** A client. */
export interface AlarmListener {
  show(alarm: FedAlarm): void;
  /** Called if more alarms wait than are kept: the client misses some. */
  missed(): void;
}

/** What an audience needs. */
export interface AudienceParts {
  readonly visibleDevices: VisibleDevices;
  /** Leave connections to the requests of the tenant, however many audiences it has. */
  readonly slots: FairSlots;
  readonly logger: Logger;
}

/** Maximum alarms that wait to be judged by their device, and their characters. */
const mostWaiting = { alarms: 1000, characters: 4 * 2 ** 20 };
/** Clients after which others have a turn. */
const shownAtOnce = 1000;

/** Clients with the same limits. */
export class AlarmAudience {
  readonly listeners = new Set<AlarmListener>();
  private readonly parts: AudienceParts;
  private readonly tenantId: string;
  private readonly visibility: Visibility;
  private waiting: FedAlarm[] = [];
  private characters = 0;
  private isJudging = false;

  constructor(parts: AudienceParts, tenantId: string, visibility: Visibility) {
    this.parts = parts;
    this.tenantId = tenantId;
    this.visibility = visibility;
  }

  /** Shows an alarm: at once if its clients see all alarms, otherwise once it is known whether they see its device. Alarms stay in order. */
  take(alarm: FedAlarm): void {
    if (!isLimited(this.visibility)) {
      for (const listener of this.listeners) listener.show(alarm);
      return;
    }
    this.waiting.push(alarm);
    this.characters += alarm.message.length;
    const isFull = this.waiting.length > mostWaiting.alarms || this.characters > mostWaiting.characters;
    if (isFull && this.waiting.length > 1) {
      this.takeWaiting();
      for (const listener of [...this.listeners]) listener.missed();
    } else if (!this.isJudging) void this.judge();
  }

  private takeWaiting(): readonly FedAlarm[] {
    const { waiting } = this;
    this.waiting = [];
    this.characters = 0;
    return waiting;
  }

  private async judge(): Promise<void> {
    const { tenantId, visibility } = this;
    const { visibleDevices, slots, logger } = this.parts;
    this.isJudging = true;
    let shown = 0;
    while (this.waiting.length > 0) {
      try {
        const leave = await slots.acquire(tenantId);
        const alarms = this.takeWaiting();
        const deviceIds = [...new Set(alarms.map(({ deviceId }) => deviceId))];
        const visible = await visibleDevices(tenantId, deviceIds, visibility).finally(leave);
        for (const alarm of alarms) {
          if (!visible.has(alarm.deviceId)) continue;
          for (const listener of this.listeners) listener.show(alarm);
          shown += this.listeners.size;
          if (shown < shownAtOnce) continue;
          shown = 0;
          await setImmediate();
        }
      } catch (error) {
        logger.warn({ err: error, tenant: tenantId }, 'alarms were not shown to limited users');
      }
    }
    this.isJudging = false;
  }
}
