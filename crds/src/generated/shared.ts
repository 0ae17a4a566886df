// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
/**
 * How points are committed to the blockchain.
 */
export interface AnchoringPolicy {
  /**
   * Merkle puts points of many devices into one batch; PerEvent anchors each point in a transaction of its own; Chain also links each device's points to one another.
   */
  mode: 'Merkle' | 'PerEvent' | 'Chain';
}

/**
 * One aspect of a resource's state.
 */
export interface Condition {
  /**
   * The aspect, in CamelCase.
   */
  type: string;
  /**
   * Whether it holds.
   */
  status: 'True' | 'False' | 'Unknown';
  /**
   * metadata.generation that the condition was set for.
   */
  observedGeneration?: number;
  /**
   * When status last changed.
   */
  lastTransitionTime: string;
  /**
   * Why, for programs, in CamelCase.
   */
  reason: string;
  /**
   * Why, for people.
   */
  message: string;
}

/**
 * How updates reach devices.
 */
export interface OtaPolicy {
  /**
   * Seconds from delivery of the update command until a device that has not reported counts as failed.
   */
  deviceTimeoutSeconds?: number;
  /**
   * How often the update command is sent to one device before it counts as failed.
   */
  maxAttempts?: number;
  /**
   * When update commands may be sent. Scheduling is not held back by it.
   */
  window?: UpdateWindow;
  /**
   * Whether a package needs a signature by one of the tenant's trustedSigningKeys before it is rolled out to these devices.
   */
  requireSignature?: boolean;
}

/**
 * What a telemetry point may hold.
 */
export interface TelemetrySchema {
  /**
   * The known keys of a point, by name.
   */
  keys?: {
    /**
     * What the value under this key must be.
     */
    [k: string]: {
      /**
       * Number for numeric_values, String for string_values.
       */
      type: 'Number' | 'String';
      /**
       * Whether a point without this key is rejected.
       */
      required?: boolean;
      /**
       * Least number allowed.
       */
      min?: number;
      /**
       * Greatest number allowed.
       */
      max?: number;
      /**
       * Unit of the number, for display only.
       */
      unit?: string;
      /**
       * The strings allowed.
       *
       * @maxItems 128
       *
       * Items: An allowed string.
       */
      enum?: string[];
      /**
       * Greatest length of the string in bytes of UTF-8.
       */
      maxLength?: number;
    };
  };
  /**
   * Whether a point may hold keys that are not named in keys.
   */
  additionalKeys?: 'Allow' | 'Reject';
}

/**
 * When update commands may be sent.
 */
export interface UpdateWindow {
  /**
   * First minute of the window, as HH:MM. A start after the end crosses midnight.
   */
  start: string;
  /**
   * Minute at which the window closes, as HH:MM.
   */
  end: string;
  /**
   * Days on which the window opens; every day when empty.
   *
   * @maxItems 7
   *
   * Items: A day of the week.
   */
  days?: ('Monday' | 'Tuesday' | 'Wednesday' | 'Thursday' | 'Friday' | 'Saturday' | 'Sunday')[];
  /**
   * IANA name of the time zone of start and end.
   */
  timeZone?: string;
}
