// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
/**
 * How points are anchored on the blockchain.
 */
export interface AnchoringPolicy {
  /**
   * Merkle anchors the points of many devices in one batch. PerEvent anchors each point in a separate transaction. Chain batches like Merkle and also links the points of each device to one another.
   */
  mode: 'Merkle' | 'PerEvent' | 'Chain';
}

/**
 * One aspect of a resource's state.
 */
export interface Condition {
  /**
   * Type of the condition, in CamelCase.
   */
  type: string;
  /**
   * Status of the condition.
   */
  status: 'True' | 'False' | 'Unknown';
  /**
   * metadata.generation for which the condition was set.
   */
  observedGeneration?: number;
  /**
   * Time at which status last changed.
   */
  lastTransitionTime: string;
  /**
   * Machine-readable reason, in CamelCase.
   */
  reason: string;
  /**
   * Human-readable explanation.
   */
  message: string;
}

/**
 * How updates reach devices.
 */
export interface OtaPolicy {
  /**
   * Seconds from delivery of the update command until a device without a report counts as failed.
   */
  deviceTimeoutSeconds?: number;
  /**
   * Maximum number of update attempts per device before it counts as failed.
   */
  maxAttempts?: number;
  /**
   * Time window in which update commands may be sent. Scheduling does not depend on it.
   */
  window?: UpdateWindow;
  /**
   * Whether packages for these devices must be signed by one of the tenant's trustedSigningKeys.
   */
  requireSignature?: boolean;
}

/**
 * Schema of telemetry points.
 */
export interface TelemetrySchema {
  /**
   * Known keys of a point, by name.
   */
  keys?: {
    /**
     * Constraints on the value of this key.
     */
    [k: string]: {
      /**
       * Type of the value: Number for numeric_values, String for string_values.
       */
      type: 'Number' | 'String';
      /**
       * Whether points without this key are rejected.
       */
      required?: boolean;
      /**
       * Minimum value.
       */
      min?: number;
      /**
       * Maximum value.
       */
      max?: number;
      /**
       * Unit of the value, for display only.
       */
      unit?: string;
      /**
       * Allowed values.
       *
       * @maxItems 128
       *
       * Items: Allowed value.
       */
      enum?: string[];
      /**
       * Maximum length of the value in bytes of UTF-8.
       */
      maxLength?: number;
    };
  };
  /**
   * Whether points may contain keys that are not listed in keys.
   */
  additionalKeys?: 'Allow' | 'Reject';
}

/**
 * Time window in which update commands may be sent.
 */
export interface UpdateWindow {
  /**
   * First minute of the window, as HH:MM. If start is later than end, the window spans midnight.
   */
  start: string;
  /**
   * Minute at which the window closes, as HH:MM.
   */
  end: string;
  /**
   * Days on which the window opens. Defaults to every day.
   *
   * @maxItems 7
   *
   * Items: Day of the week.
   */
  days?: ('Monday' | 'Tuesday' | 'Wednesday' | 'Thursday' | 'Friday' | 'Saturday' | 'Sunday')[];
  /**
   * IANA time zone of start and end.
   */
  timeZone?: string;
}
