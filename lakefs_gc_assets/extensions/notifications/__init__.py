"""Posts ended and failed runs to webhooks."""
