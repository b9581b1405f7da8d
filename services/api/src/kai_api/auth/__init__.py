"""What may be answered to whom (who asks: `kaicore.runtime.access`)."""
