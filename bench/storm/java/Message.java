package bench.storm;

/**
 * One delivery; Storm hands it back with its ack or fail.
 *
 * @param scheduledUs when it was due to be published, on the monotonic clock; 0 if it does not say
 */
record Message(long tag, String body, long scheduledUs) {}
