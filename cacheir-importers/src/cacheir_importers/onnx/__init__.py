"""Reads ONNX models without the onnx package: headers alone, weights stay where they lie."""
