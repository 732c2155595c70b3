"""What mechanism authors build with: noise, partition selection, quantiles, sparse vector, moments."""
