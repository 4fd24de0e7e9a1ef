"""From DICOM files as scanners and archives leave them to a BIDS folder that can be imported."""
