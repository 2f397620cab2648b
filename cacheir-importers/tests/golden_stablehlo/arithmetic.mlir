module @golden {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2x3xf32>
    %1 = stablehlo.subtract %0, %arg1 : tensor<2x3xf32>
    %2 = stablehlo.multiply %0, %arg1 : tensor<2x3xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<2x3xf32>  // a comment
    %4 = "stablehlo.maximum"(%arg0, %arg1) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = stablehlo.abs %arg0 : tensor<2x3xf32>
    %6 = stablehlo.power %5, %arg1 : tensor<2x3xf32>
    return %0, %1, %2, %3, %4, %6 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
  }
}
