"""What a network is trained for: classification, regression, segmentation."""
