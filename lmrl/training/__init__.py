"""The parts of a LightningModule: optimizer, logging, noise scale, FLOPs and throughput."""
